//! Sizes, counts and lists as written on the command line: `400`, `4KiB`, `500MiB`; `1M`; `1,8`.

/// A size in bytes: digits, then nothing, `B`, `KiB`, `MiB` or `GiB` in any case.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    if text.starts_with('-') {
        return Err("it must not be negative".to_owned());
    }
    let (digits, unit) = split(text);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "kib" => 10,
        "mib" => 20,
        "gib" => 30,
        _ => return Err(format!("`{unit}` is no unit of size: use B, KiB, MiB or GiB")),
    };
    scaled(digits, 1 << shift)
}

/// A number of things: digits (underscores allowed), then nothing, `k` or `M` for thousands and
/// millions.
pub(crate) fn parse_count(text: &str) -> Result<u64, String> {
    if text.starts_with('-') {
        return Err("it must not be negative".to_owned());
    }
    let (digits, unit) = split(text);
    let factor = match unit {
        "" => 1,
        "k" | "K" => 1_000,
        "m" | "M" => 1_000_000,
        _ => return Err(format!("`{unit}` is no unit of count: use k (1,000) or M (1,000,000)")),
    };
    scaled(digits, factor)
}

/// The least memory a benchmark's run may be given; with less the process itself does not fit.
const LEAST_MEMORY_LIMIT: u64 = 16 << 20;
/// More keys than this have no place in one benchmark: half a TiB with the default values.
const MOST_KEYS: u64 = 1_000_000_000;
/// The most memory any size on the command line may ask for.
const MOST_MEMORY: u64 = 1 << 40;

/// A benchmark's number of keys.
pub(crate) fn parse_keys(text: &str) -> Result<u64, String> {
    let range = || "it must be from 1 to 1,000,000,000 (1000M)".to_owned();
    let keys = parse_count(text).map_err(|what| format!("{what}; {}", range()))?;
    if (1..=MOST_KEYS).contains(&keys) { Ok(keys) } else { Err(range()) }
}

/// A benchmark's size of values.
pub(crate) fn parse_value_size(text: &str) -> Result<u64, String> {
    size_within(text, 8, 1 << 30, "from 8 B to 1GiB")
}

/// The memory a benchmark's run may use.
pub(crate) fn parse_memory_limit(text: &str) -> Result<u64, String> {
    size_within(text, LEAST_MEMORY_LIMIT, MOST_MEMORY, "from 16MiB to 1024GiB")
}

/// The memory of a block cache.
pub(crate) fn parse_cache_size(text: &str) -> Result<u64, String> {
    size_within(text, 0, MOST_MEMORY, "from 0 to 1024GiB")
}

pub(crate) fn size_within(text: &str, least: u64, most: u64, range: &str) -> Result<u64, String> {
    let size = parse_size(text).map_err(|what| format!("{what}; it must be {range}"))?;
    if (least..=most).contains(&size) { Ok(size) } else { Err(format!("it must be {range}")) }
}

/// Seconds, with an optional fraction: more than zero, at most a day.
pub(crate) fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        _ => Err("give seconds above 0 and at most 86400, such as `5` or `0.5`".to_owned()),
    }
}

/// Bytes for people: `512 B`, `4.0 KiB`, `1.7 GiB`.
pub(crate) fn human_size(bytes: u64) -> String {
    let mut value = to_f64(bytes);
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 || unit == "GiB" {
            return match unit {
                "B" => format!("{bytes} B"),
                _ => format!("{value:.1} {unit}"),
            };
        }
        value /= 1024.0;
    }
    unreachable!("the loop returns at GiB");
}

/// A number of things in words: `1 row`, `0 rows`.
pub(crate) fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// A count as a float, for ratios and rates. Exact up to 2^53, which no count here comes near.
#[expect(clippy::cast_precision_loss, reason = "rates and ratios need no more than 53 bits")]
pub(crate) fn to_f64(count: u64) -> f64 {
    count as f64
}

fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    (digits, unit.trim_start())
}

fn scaled(digits: &str, factor: u64) -> Result<u64, String> {
    let digits = digits.replace('_', "");
    let too_large = || format!("the number is too large: the most is {}", u64::MAX);
    if digits.is_empty() {
        return Err("give a number, such as `400`".to_owned());
    }
    // Only digits are left, so nothing but the size of the number can be wrong.
    let number: u64 = digits.parse().map_err(|_| too_large())?;
    number.checked_mul(factor).ok_or_else(too_large)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bytes_with_an_optional_binary_unit() {
        for (text, bytes) in [
            ("400", 400),
            ("0", 0),
            ("7B", 7),
            ("4KiB", 4096),
            ("4 kib", 4096),
            ("500MiB", 500 << 20),
            ("2GiB", 2 << 30),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_wrong_size_or_count_is_refused_with_what_would_be_right() {
        for text in ["", "KiB", "4KB", "4 5", "-1", "1.5MiB", "18446744073709551615KiB", "4TiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
        assert!(parse_size("4KB").unwrap_err().contains("KiB"));
        for text in ["", "M", "4G", "-1", "1.5M", "18446744073709551615k"] {
            assert!(parse_count(text).is_err(), "{text}");
        }
        for text in ["", "0", "-1", "NaN", "inf", "x", "90000"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_out_of_range_is_told_the_range() {
        for text in ["0", "1000000001", "99999999999999999999", "x"] {
            assert!(parse_keys(text).unwrap_err().contains("from 1 to 1,000,000,000"), "{text}");
        }
        assert_eq!(parse_keys("1000M"), Ok(1_000_000_000));
        for text in ["0", "7", "2GiB"] {
            assert!(parse_value_size(text).unwrap_err().contains("from 8 B to 1GiB"), "{text}");
        }
        for text in ["0", "15MiB", "1025GiB", "99999999999999999999"] {
            assert!(parse_memory_limit(text).unwrap_err().contains("from 16MiB"), "{text}");
        }
        assert_eq!(parse_memory_limit("16MiB"), Ok(16 << 20));
        assert!(parse_cache_size("2000GiB").is_err());
        let most = parse_count("18446744073709551616").unwrap_err();
        assert!(most.contains("18446744073709551615"), "{most}");
    }

    #[test]
    fn counts_may_use_underscores_and_thousands() {
        assert_eq!(parse_count("4_000_000"), Ok(4_000_000));
        assert_eq!(parse_count("4M"), Ok(4_000_000));
        assert_eq!(parse_count("250k"), Ok(250_000));
    }

    #[test]
    fn one_thing_is_not_many() {
        assert_eq!(counted(1, "entry", "entries"), "1 entry");
        assert_eq!(counted(0, "entry", "entries"), "0 entries");
    }

    #[test]
    fn sizes_for_people_keep_three_figures() {
        assert_eq!(human_size(512), "512 B");
        assert_eq!(human_size(4096), "4.0 KiB");
        assert_eq!(human_size(1_825_361_101), "1.7 GiB");
        assert_eq!(human_size(5 << 40), "5120.0 GiB");
    }
}

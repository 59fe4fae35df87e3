//! The figures, for people and for programs.

use comfy_table::{CellAlignment, Table, presets::ASCII_MARKDOWN};
use serde_json::{Value, json};

use crate::peer::Name;
use crate::run::{Cell, Section};
use crate::work::Sample;

/// What one cell is compared with.
struct Baselines<'a> {
    serial: Option<&'a Cell>,
    rocksdb: Option<&'a Cell>,
    floor: Option<&'a Cell>,
}

impl<'a> Baselines<'a> {
    fn of(section: &'a Section) -> Self {
        let complete = || section.cells.iter().filter(|cell| cell.error.is_none());
        let best = |right: fn(Name) -> bool| {
            let cells = complete().filter(|cell| right(cell.peer));
            cells.max_by(|a, b| rate(a).total_cmp(&rate(b)))
        };
        Self {
            serial: complete().find(|cell| cell.peer == Name::PosixSerial),
            rocksdb: best(Name::is_rocksdb),
            floor: best(Name::is_floor),
        }
    }

    /// The median over the turns of the ratio to each of them, where there is one.
    fn ratios(&self, cell: &Cell) -> [Option<f64>; 3] {
        [self.serial, self.rocksdb, self.floor].map(|base| {
            let pairs = base?.samples.iter().zip(&cell.samples);
            let ratios: Vec<f64> = pairs.map(|(base, own)| own.rate / base.rate).collect();
            (!ratios.is_empty()).then(|| median(ratios))
        })
    }
}

/// The table of a workload.
pub fn text(section: &Section) -> String {
    let loads = section.workload.loads();
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    let mut head = vec!["peer", section.workload.unit(), "min..max", "CPU us"];
    head.extend(["of posix-serial", "of RocksDB", "of floor"]);
    if loads {
        head.push("written");
    }
    table.set_header(&head);
    for column in 1..head.len() {
        let column = table.column_mut(column).expect("the header made it");
        column.set_cell_alignment(CellAlignment::Right);
    }
    let baselines = Baselines::of(section);
    for cell in section.cells.iter().filter(|cell| cell.error.is_none()) {
        let (least, most) = range(cell);
        let mut row = vec![
            cell.peer.text(),
            grouped(rate(cell)),
            format!("{}..{}", grouped(least), grouped(most)),
            format!("{:.2}", median_of(cell, |sample| sample.cpu_us)),
        ];
        let shown =
            |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
        row.extend(baselines.ratios(cell).map(shown));
        if loads {
            row.push(format!("{:.2}", median_of(cell, |s| s.amplification.unwrap_or(0.0))));
        }
        table.add_row(row);
    }
    let mut text = format!("## {}\n{}\n\n{table}", section.workload.text(), section.conditions);
    for cell in &section.cells {
        if let Some(error) = &cell.error {
            text += &format!("\n{} FAILED: {error}", cell.peer.text());
        }
        for fact in cell.facts.iter().take(1).filter(|_| cell.peer.text().contains("io-uring")) {
            text += &format!("\n{}: {fact}", cell.peer.text());
        }
        for fact in cell.facts.iter().take(1).filter(|_| cell.peer.is_rocksdb()) {
            text += &format!("\n{}: {fact}", cell.peer.text());
        }
    }
    text
}

/// Everything about a workload.
pub fn json(section: &Section) -> Value {
    let baselines = Baselines::of(section);
    let cells = section.cells.iter().map(|cell| {
        let [serial, rocksdb, floor] = baselines.ratios(cell);
        let median = (!cell.samples.is_empty()).then(|| rate(cell));
        json!({
            "peer": cell.peer,
            "median": median,
            "of_posix_serial": serial,
            "of_rocksdb": rocksdb,
            "of_floor": floor,
            "turns": cell.samples,
            "in_use": cell.facts,
            "error": cell.error,
        })
    });
    json!({
        "workload": section.workload,
        "unit": section.workload.unit(),
        "conditions": section.conditions,
        "peers": cells.collect::<Vec<_>>(),
    })
}

fn rate(cell: &Cell) -> f64 {
    median_of(cell, |sample| sample.rate)
}

fn median_of(cell: &Cell, figure: impl Fn(&Sample) -> f64) -> f64 {
    median(cell.samples.iter().map(figure).collect())
}

fn range(cell: &Cell) -> (f64, f64) {
    let rates = cell.samples.iter().map(|sample| sample.rate);
    (rates.clone().fold(f64::INFINITY, f64::min), rates.fold(0.0, f64::max))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        length if length % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// A rate with thousands set apart, or with decimals where it is small.
fn grouped(rate: f64) -> String {
    if rate < 100.0 {
        return format!("{rate:.2}");
    }
    let digits = format!("{rate:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::Workload;

    fn cell(peer: Name, rates: &[f64]) -> Cell {
        let sample =
            |&rate: &f64| Sample { rate, cpu_us: 1.0, requested: 1, found: 1, amplification: None };
        let samples = rates.iter().map(sample).collect();
        Cell { peer, samples, facts: Vec::new(), error: None }
    }

    #[test]
    fn ratios_are_medians_of_the_pairs_of_a_turn() {
        let cells = vec![
            cell(Name::PosixSerial, &[100.0, 200.0, 400.0]),
            cell(Name::IoUring, &[300.0, 400.0, 1600.0]),
            cell(Name::RocksdbDirect, &[600.0, 1600.0, 800.0]),
            cell(Name::Rocksdb, &[1.0, 1.0, 1.0]),
        ];
        let workload = Workload::ColdMultiget;
        let section = Section { workload, conditions: String::new(), cells };
        let ratios = Baselines::of(&section).ratios(&section.cells[1]);
        assert_eq!(ratios, [Some(3.0), Some(0.5), None]);
        let text = text(&section);
        assert!(text.contains("| io-uring "), "{text}");
        assert!(text.contains("| 300.00..1,600 ") || text.contains("300..1,600"), "{text}");
    }

    #[test]
    fn rates_are_grouped() {
        assert_eq!(grouped(1_234_567.4), "1,234,567");
        assert_eq!(grouped(123.0), "123");
        assert_eq!(grouped(12.345), "12.35");
    }
}

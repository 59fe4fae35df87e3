//! Choosing an environment, aloud.

use std::fmt;

use crate::sync::Arc;
use crate::{Env, PosixEnv};
#[cfg(target_os = "linux")]
use crate::{IoUringEnv, Unavailable};

/// Which environment [`auto`] took, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    #[cfg(target_os = "linux")]
    unavailable: Option<Unavailable>,
}

/// The io_uring environment where io_uring works, else [`PosixEnv`]; which of them, and why, is in
/// the [`Choice`], which the caller should show.
///
/// Both keep the same files and give the same answers. Costs what building an [`IoUringEnv`] costs.
#[cfg_attr(not(target_os = "linux"), doc = "On this system that is always `PosixEnv`.")]
pub fn auto() -> (Arc<dyn Env>, Choice) {
    #[cfg(target_os = "linux")]
    return choose(IoUringEnv::new());
    #[cfg(not(target_os = "linux"))]
    (Arc::new(PosixEnv::new()), Choice {})
}

#[cfg(target_os = "linux")]
fn choose(built: Result<IoUringEnv, Unavailable>) -> (Arc<dyn Env>, Choice) {
    match built {
        Ok(env) => (Arc::new(env), Choice { unavailable: None }),
        Err(cause) => {
            crate::trace::took_posix(&cause);
            (Arc::new(PosixEnv::new()), Choice { unavailable: Some(cause) })
        }
    }
}

impl Choice {
    /// The name of the environment taken, as in its report: `"io_uring"` or `"posix"`.
    pub fn env(&self) -> &'static str {
        #[cfg(target_os = "linux")]
        if self.unavailable.is_none() {
            return "io_uring";
        }
        "posix"
    }

    /// Why io_uring could not be taken, if so.
    #[cfg(target_os = "linux")]
    pub fn unavailable(&self) -> Option<&Unavailable> {
        self.unavailable.as_ref()
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "environment: {}", self.env())?;
        #[cfg(target_os = "linux")]
        if let Some(cause) = &self.unavailable {
            write!(f, "\n{cause}")?;
        }
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// URING-23
    #[test]
    fn the_choice_names_the_environment_that_is_in_use() {
        let (env, choice) = auto();
        assert_eq!(choice.env(), env.report().env);
        assert_eq!(choice.unavailable().is_none(), env.report().env == "io_uring");
    }

    /// URING-28
    #[test]
    fn where_setup_is_denied_the_plain_environment_is_taken_and_the_cause_told() {
        let cause = Unavailable::Denied { seccomp: true, errno: libc::EPERM };
        let (env, choice) = choose(Err(cause.clone()));
        assert_eq!((env.report().env, choice.env()), ("posix", "posix"));
        assert_eq!(choice.unavailable(), Some(&cause));
        let text = choice.to_string();
        assert!(text.starts_with("environment: posix\nio_uring is not available: "), "{text}");
        assert_eq!(env.report().counter("ring_reads"), 0);
    }
}

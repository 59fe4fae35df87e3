//! The durability table on everything that can lose power on command.

use std::path::PathBuf;
use std::sync::Arc;

use treering_env::conformance::{self, PowerLoss};
use treering_env::{CountEnv, Env, FaultEnv, MemEnv};

/// A wrapper over memory; the memory loses power.
struct Over {
    memory: MemEnv,
    env: Arc<dyn Env>,
}

impl Over {
    fn new<E: Env + 'static>(wrap: impl Fn(Arc<dyn Env>) -> E) -> Self {
        let memory = MemEnv::new();
        let env = Arc::new(wrap(Arc::new(memory.clone())));
        Self { memory, env }
    }
}

impl PowerLoss for Over {
    fn site(&self) -> (Arc<dyn Env>, PathBuf) {
        (Arc::clone(&self.env), PathBuf::new())
    }

    fn images(&self) -> Vec<(String, Arc<dyn Env>)> {
        self.memory.images()
    }

    fn killed(&self) -> Arc<dyn Env> {
        self.memory.killed()
    }
}

#[test]
fn mem_env_loses_what_it_may_and_keeps_what_it_must() {
    conformance::durability(MemEnv::new);
}

#[test]
fn wrappers_keep_what_the_environment_inside_keeps() {
    conformance::durability(|| Over::new(FaultEnv::new));
    conformance::durability(|| Over::new(CountEnv::new));
}

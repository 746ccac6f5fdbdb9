//! This rank's part in the job that is measured: its engine, and the bare data plane beside it.

use std::cell::{RefCell, RefMut};
use std::sync::Arc;

use ronde_collective::Group;
use ronde_engine::{Engine, Place, Settings};

use crate::Error;

pub(crate) struct Session {
    // Dropped first: its links are the engine's.
    world: RefCell<Group>,
    engine: Engine,
}

impl Session {
    pub(crate) fn start() -> Result<Session, Error> {
        let settings = Settings::from_environment(|name| std::env::var(name).ok());
        let engine = Engine::start(Arc::new(|| false), settings, &[])?;
        Ok(Session { world: RefCell::new(engine.bare_group()?), engine })
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The group of all ranks, without agreement on what to do.
    pub(crate) fn world(&self) -> RefMut<'_, Group> {
        self.world.borrow_mut()
    }

    pub(crate) fn place(&self) -> Place {
        self.engine.place()
    }
}

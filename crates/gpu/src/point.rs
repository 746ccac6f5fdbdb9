//! Points in streams, as the engine knows them, and several of them as one.

use std::sync::Arc;

use ronde_cuda::Mark;
use ronde_engine::device::Event;

/// A point in a stream of a GPU.
pub(crate) struct Point(pub(crate) Arc<Mark>);

impl Event for Point {
    fn reached(&self) -> bool {
        // What failed will not change any more; whoever waits hears of it.
        self.0.reached().unwrap_or(true)
    }

    fn wait(&self) -> Result<(), String> {
        self.0.wait().map_err(|error| error.to_string())
    }

    fn order(&self, stream: u64) -> Result<(), String> {
        self.0.order(stream).map_err(|error| error.to_string())
    }
}

/// Reached when all of them are.
pub(crate) struct All(pub(crate) Vec<Arc<dyn Event>>);

impl Event for All {
    fn reached(&self) -> bool {
        self.0.iter().all(|event| event.reached())
    }

    fn wait(&self) -> Result<(), String> {
        self.0.iter().try_for_each(|event| event.wait())
    }

    fn order(&self, stream: u64) -> Result<(), String> {
        self.0.iter().try_for_each(|event| event.order(stream))
    }
}

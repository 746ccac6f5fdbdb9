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

    fn place(&self) -> Option<(u64, u64)> {
        self.0.place()
    }
}

/// The events without those that another one comes behind. The tensors of a batch mostly come from one stream, so one wait is
/// enough for all of them; each would take the driver's lock from the framework, which launches kernels meanwhile.
pub(crate) fn latest<'a>(events: impl Iterator<Item = &'a Arc<dyn Event>>) -> Vec<Arc<dyn Event>> {
    let mut kept: Vec<&Arc<dyn Event>> = Vec::new();
    for event in events {
        let stream = |event: &Arc<dyn Event>| event.place().map(|(stream, _)| stream);
        let mine = stream(event);
        match kept.iter_mut().find(|other| mine.is_some() && stream(other) == mine) {
            Some(other) if event.place() > other.place() => *other = event,
            Some(_) => {}
            None => kept.push(event),
        }
    }
    kept.into_iter().cloned().collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Placed(Option<(u64, u64)>);

    impl Event for Placed {
        fn reached(&self) -> bool {
            false
        }

        fn wait(&self) -> Result<(), String> {
            Ok(())
        }

        fn order(&self, _stream: u64) -> Result<(), String> {
            Ok(())
        }

        fn place(&self) -> Option<(u64, u64)> {
            self.0
        }
    }

    #[test]
    fn of_each_stream_the_last_point_stays_and_so_does_what_is_of_no_stream() {
        let places = [Some((7, 1)), Some((9, 2)), None, Some((7, 5)), Some((7, 3)), None, Some((9, 4))];
        let events: Vec<Arc<dyn Event>> =
            places.into_iter().map(|place| Arc::new(Placed(place)) as Arc<dyn Event>).collect();
        let kept: Vec<_> = latest(events.iter()).iter().map(|event| event.place()).collect();
        assert_eq!(kept, [Some((7, 5)), Some((9, 4)), None, None]);
    }
}

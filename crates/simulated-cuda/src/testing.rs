//! What the tests of this crate have in common: a thread with a context.

use std::ffi::{CString, c_char};

use crate::handles::Handle;
use crate::pointer::{In, Out};
use crate::{Live, Simulation, context, device, event, module, stream};

/// Device 0 is current to the thread that made it. Checks at its end that nothing is left.
pub(crate) struct Desk {
    pub(crate) simulation: Simulation,
    before: Live,
}

impl Desk {
    pub(crate) fn new() -> Desk {
        let simulation = Simulation::begin();
        assert_eq!(device::init(0), Ok(()));
        let before = simulation.live();
        enter(0);
        Desk { simulation, before }
    }

    /// Does something with another device current.
    pub(crate) fn on(&self, device: i32, act: impl FnOnce()) {
        enter(device);
        act();
        leave(device);
    }

    pub(crate) fn stream(&self) -> Handle {
        let mut handle = 0;
        assert_eq!(stream::create(Out::to(&mut handle), 1, -1), Ok(()));
        handle
    }

    pub(crate) fn free_streams(&self, streams: &[Handle]) {
        for stream in streams {
            assert_eq!(stream::destroy(*stream), Ok(()));
        }
    }

    pub(crate) fn event(&self) -> Handle {
        let mut handle = 0;
        assert_eq!(event::create(Out::to(&mut handle), 2), Ok(()));
        handle
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        leave(0);
        if !std::thread::panicking() {
            assert_eq!(self.simulation.live(), self.before, "something is left");
        }
    }
}

fn enter(device: i32) {
    let mut handle = 0;
    assert_eq!(context::retain(Out::to(&mut handle), device), Ok(()));
    assert_eq!(context::push(handle), Ok(()));
}

fn leave(device: i32) {
    assert_eq!(context::pop(Out::to(&mut 0)), Ok(()));
    assert_eq!(context::release(device), Ok(()));
}

/// Calls something with a text that ends with a zero byte.
pub(crate) fn with_text<T>(text: &str, call: impl FnOnce(In<c_char>) -> T) -> T {
    let text = CString::new(text).expect("no zero byte");
    call(In::from(text.as_ptr()))
}

/// A module with one entry.
pub(crate) fn loaded(entry: &str) -> Handle {
    let text = format!(".version 6.4\n.target sm_60\n.visible .entry {entry}(.param .u64 table) {{ ret; }}");
    let mut module = 0;
    let (options, values) = (In::from(std::ptr::null()), In::from(std::ptr::null()));
    let answer = with_text(&text, |text| module::load(Out::to(&mut module), text, 0, options, values));
    assert_eq!(answer, Ok(()));
    module
}

//! Pointers that callers of the driver pass in, for results and for arguments.
//!
//! CUDA's contract is that such a pointer is null or valid for what the function reads or writes. It is taken
//! over once, here: an [`Out`] or [`In`] comes from outside only as an argument of one of the driver's functions,
//! whose callers vouch for it by calling them.

use crate::status::{INVALID_VALUE, Result};

/// Where a result goes.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

/// Where an argument, or an array of them, lies.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct In<T>(*const T);

impl<T> Out<T> {
    /// Stores a result.
    pub(crate) fn put(self, value: T) -> Result {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so valid for a `T` as the text above says.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Makes a result and stores it, or makes none if there is no place for it.
    pub(crate) fn put_with(self, make: impl FnOnce() -> Result<T>) -> Result {
        if self.0.is_null() { Err(INVALID_VALUE) } else { self.put(make()?) }
    }

    /// Stores a result if there is a place for it.
    pub(crate) fn put_if_wanted(self, value: T) {
        let _ = self.put(value);
    }

    /// Stores a result where an argument was.
    pub(crate) fn exchange(self, with: impl FnOnce(T) -> Result<T>) -> Result
    where
        T: Copy,
    {
        let argument = In(self.0.cast_const()).get(0)?;
        self.put(with(argument)?)
    }

    /// Stores several results in a row.
    pub(crate) fn put_all(self, values: &[T]) -> Result
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        for (at, &value) in values.iter().enumerate() {
            // SAFETY: not null, so valid for as many as its function was told of, which the slice does not exceed.
            unsafe { self.0.add(at).write_unaligned(value) };
        }
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn to(place: &mut T) -> Out<T> {
        Out(place)
    }
}

impl<T: Copy> In<T> {
    /// The argument, or the `index`-th of an array.
    pub(crate) fn get(&self, index: usize) -> Result<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so valid for what its function reads as the text above says.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// Whether there is nothing.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The address itself, for those that read more from there than one `T`.
    pub(crate) fn address(&self) -> *const T {
        self.0
    }
}

/// For tests, which call the functions behind the driver's without going through those.
#[cfg(test)]
impl<T> From<*const T> for In<T> {
    fn from(address: *const T) -> In<T> {
        In(address)
    }
}

#[cfg(test)]
impl<T> From<&T> for In<T> {
    fn from(place: &T) -> In<T> {
        In(place)
    }
}

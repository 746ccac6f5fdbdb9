//! Failures on demand: `RONDE_TEST_NCCL=error@7,hang@2:1`.
//!
//! Each order names what happens, at which call of a communicator (from 1; 0 is its making), and optionally on which of
//! its ranks alone. Communicators take the orders that stand when they are made.

use std::sync::{Mutex, PoisonError};

const VARIABLE: &str = "RONDE_TEST_NCCL";

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The call returns `ncclSystemError`.
    Error,
    /// The call succeeds, and its work is never done until the communicator is aborted.
    Hang,
    /// The call succeeds, and then `ncclCommGetAsyncError` reports `ncclRemoteError`.
    Async,
}

/// One order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    /// What happens.
    pub trouble: Trouble,
    /// At which call of a communicator, from 1; 0 is its making.
    pub call: u64,
    /// On which rank of it; on all if none is named.
    pub rank: Option<usize>,
}

/// Orders that a program gave itself, instead of the variable.
static GIVEN: Mutex<Option<Vec<Injection>>> = Mutex::new(None);

/// Gives orders for communicators made from now on, in the place of the variable's.
pub fn inject(orders: &[Injection]) {
    *GIVEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(orders.to_vec());
}

/// The orders that stand for a rank of a communicator that is being made, or what is wrong with the variable.
pub(crate) fn orders(rank: usize) -> Result<Vec<Injection>, String> {
    let given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let orders = match given {
        Some(orders) => orders,
        None => parse(&std::env::var(VARIABLE).unwrap_or_default())?,
    };
    Ok(orders.into_iter().filter(|order| order.rank.is_none_or(|only| only == rank)).collect())
}

fn parse(text: &str) -> Result<Vec<Injection>, String> {
    let orders = text.split(',').map(str::trim).filter(|order| !order.is_empty());
    orders
        .map(|order| {
            one(order).ok_or_else(|| {
                format!("{VARIABLE}: {order:?} is not understood; write error@N, hang@N or async@N, with :RANK at will")
            })
        })
        .collect()
}

fn one(order: &str) -> Option<Injection> {
    let (name, place) = order.split_once('@')?;
    let (call, rank) = match place.split_once(':') {
        Some((call, rank)) => (call, Some(rank.parse().ok()?)),
        None => (place, None),
    };
    let trouble = match name {
        "error" => Trouble::Error,
        "hang" => Trouble::Hang,
        "async" => Trouble::Async,
        _ => return None,
    };
    Some(Injection { trouble, call: call.parse().ok()?, rank })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_and_nonsense_is_refused() {
        let all = parse("error@7, hang@0:1,async@12,").expect("orders");
        let order = |trouble, call, rank| Injection { trouble, call, rank };
        let expected = [
            order(Trouble::Error, 7, None),
            order(Trouble::Hang, 0, Some(1)),
            order(Trouble::Async, 12, None),
        ];
        assert_eq!(all, expected);
        assert_eq!(parse(""), Ok(Vec::new()));
        for wrong in ["error", "error@x", "crash@1", "error@1:x", "@1"] {
            assert!(parse(wrong).is_err_and(|text| text.contains(wrong)), "{wrong}");
        }
    }
}

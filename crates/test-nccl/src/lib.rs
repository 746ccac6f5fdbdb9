//! NCCL's functions for ranks that share one GPU. For tests only; nothing that ships depends on it.
//!
//! NCCL refuses two ranks on one GPU, so where there is only one, what calls NCCL could not be run with more than one rank.
//! This library has NCCL's symbols, as far as `ronde-nccl` looks for them, and really does what they promise: between
//! processes or threads, through memory of the device (`works`), asynchronously in the order of streams. It is loaded by
//! naming it in `RONDE_NCCL_LIBRARY`, or linked and given to `ronde_nccl::Library::with` as [`lookup`].
//!
//! Where NCCL would hang, or compute nonsense, it looks closely:
//! - ranks that launch different things, or in different orders, within a communicator or across those they share, or
//!   make communicators in different orders, get `ncclInvalidUsage`, and a line on stderr says what differed (`ledger`);
//! - so does a call that comes before the one before it is done, after the end, or for a communicator that was freed;
//! - failures come on demand (`injection`).
//!
//! A rank that aborts lets only its own stream go on; the others wait for it until they abort too, as with NCCL. What the
//! stream of a rank that gave up still does is worth nothing, and others may read it: their results are good only if
//! no rank of the communicator was given up.
//!
//! | Module | What it is |
//! |---|---|
//! | `symbols` | the functions; groups |
//! | `communicator` | one rank's communicator: how far it is |
//! | `meeting` | how its ranks find each other |
//! | `joined` | checks what is launched, then gives it to the stream |
//! | `works` | rounds in device memory |
//! | `page` | the host memory that ranks share |
//! | `call`, `ledger` | what ranks have to agree on, and whether they do |
//! | `answer`, `injection` | NCCL's numbers; failures on demand |

mod answer;
mod call;
mod communicator;
mod injection;
mod joined;
mod ledger;
mod meeting;
mod page;
mod symbols;
mod works;

pub use injection::{Injection, Trouble, inject};
pub use symbols::*;

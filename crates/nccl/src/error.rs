//! What can go wrong with NCCL, in words for the person who runs the job.
//!
//! Errors are `Clone`: a communicator that failed once answers every later call with the same first cause.

use std::fmt;

use ronde_collective::types::DType;

use crate::elements::Op;
use crate::functions::Code;
use crate::library::{OLDEST, Version};

/// Whose call it was, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// Rank in the job.
    pub rank: usize,
    /// The host it runs on.
    pub host: String,
    /// Its GPU, in the words people know it by (`GPU 0, NVIDIA H200`).
    pub gpu: String,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} on {} ({})", self.rank, self.host, self.gpu)
    }
}

/// Failure to find NCCL, or of a call of it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// No copy of NCCL that can be used.
    #[error(
        "NCCL was not found. Tried: {}. Install it beside the framework (pip install nvidia-nccl-cu12, or \
         nvidia-nccl-cu13 for CUDA 13), or name the file in RONDE_NCCL_LIBRARY",
        .tried.join("; ")
    )]
    NotFound {
        /// Each place, and why it was not that.
        tried: Vec<String>,
    },
    /// The file that RONDE_NCCL_LIBRARY names is of no use.
    #[error("RONDE_NCCL_LIBRARY names {path}, which cannot be used: {reason}")]
    Named {
        /// The file.
        path: String,
        /// Why not.
        reason: String,
    },
    /// NCCL cannot make communicators that can be given up.
    #[error("NCCL {found} ({path}) is too old: {OLDEST} or newer is needed, for non-blocking communicators")]
    TooOld {
        /// Its file.
        path: String,
        /// Its version.
        found: Version,
    },
    /// NCCL has no such element type.
    #[error("NCCL has no type for {0}")]
    Type(DType),
    /// NCCL does not reduce this type in this way.
    #[error("NCCL has no {} of {dtype}", reduction(.op))]
    Op {
        /// The reduction.
        op: Op,
        /// The type of the elements.
        dtype: DType,
    },
    /// A call of NCCL failed.
    #[error("{message}")]
    Failed {
        /// NCCL's code.
        code: Code,
        /// The whole story, made by `cause::explain`.
        message: String,
    },
    /// The communicator was given up.
    #[error("the NCCL communicator of {who} was given up: {reason}")]
    Aborted {
        /// Whose it was.
        who: Who,
        /// Why.
        reason: String,
    },
}

fn reduction(op: &Op) -> String {
    match op {
        Op::Plain(op) => op.to_string(),
        Op::ScaledSum(_) => "sum with a factor".into(),
    }
}

#[cfg(test)]
mod tests {
    use ronde_collective::types::ReduceOp;

    use super::*;

    #[test]
    fn messages_name_what_was_refused_and_the_fix() {
        let refused = Error::Op { op: Op::Plain(ReduceOp::Average), dtype: DType::I32 };
        assert_eq!(refused.to_string(), "NCCL has no average of int32");
        let old = Error::TooOld { path: "/lib/libnccl.so.2".into(), found: Version(21304) };
        assert!(old.to_string().starts_with("NCCL 2.13.4 (/lib/libnccl.so.2) is too old: 2.14.0 or newer"));
        let tried = vec!["a: not there".to_owned(), "b: not there".to_owned()];
        let text = Error::NotFound { tried }.to_string();
        assert!(text.contains("Tried: a: not there; b: not there. Install"), "{text}");
        assert!(text.contains("RONDE_NCCL_LIBRARY"), "{text}");
    }
}

//! What an answer of NCCL usually means, and what to do about it.
//!
//! NCCL answers with one of seven numbers and leaves a line in its log. Both together are enough to guess the cause of
//! most failures that people meet. Pure: numbers and texts in, one message out.

use crate::error::Who;
use crate::functions::{
    Code, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SYSTEM_ERROR, UNHANDLED_CUDA_ERROR,
};

/// The whole message about a failed call. `name` is NCCL's own name for the code, `last` its last line about an error.
pub(crate) fn explain(what: &str, who: &Who, code: Code, name: &str, last: &str) -> String {
    let said = last.trim().trim_start_matches("Last error:").trim();
    let said = if said.is_empty() { String::new() } else { format!(" NCCL says: {said:?}.") };
    format!("{what} failed on {who}: {name} ({code}).{said} {}", usual(code, last))
}

/// What is usually behind it.
fn usual(code: Code, last: &str) -> &'static str {
    by_text(last).unwrap_or(match code {
        UNHANDLED_CUDA_ERROR => {
            "Usually this GPU is out of memory, or a kernel that ran before on it failed and this is only where it \
             shows: run with CUDA_LAUNCH_BLOCKING=1 to see which."
        }
        SYSTEM_ERROR => {
            "Usually ranks cannot reach each other at the address that NCCL took (name the network interface in \
             NCCL_SOCKET_IFNAME), or /dev/shm of a container is too small (start it with --shm-size=1g or more). \
             NCCL_DEBUG=WARN shows which call failed."
        }
        INTERNAL_ERROR => {
            "This is a bug in NCCL, or memory that was overwritten: NCCL_DEBUG=WARN shows where."
        }
        INVALID_ARGUMENT => {
            "An address, a count or a rank in this call is wrong: NCCL_DEBUG=WARN shows which."
        }
        INVALID_USAGE => {
            "Usually ranks called NCCL in different orders, or load different versions of it: NCCL_DEBUG=VERSION shows \
             the version on each rank."
        }
        REMOTE_ERROR => {
            "Another rank failed or its connection broke: the cause is in that rank's messages, or in the network \
             between the hosts."
        }
        _ => "NCCL_DEBUG=WARN shows more.",
    })
}

/// Some lines of NCCL say more than its code.
fn by_text(last: &str) -> Option<&'static str> {
    let has = |words: &str| last.to_ascii_lowercase().contains(words);
    Some(if has("duplicate gpu") {
        "Two ranks use the same GPU, which NCCL refuses: leave RONDE_GPU_PATH at auto, so that they share it in device \
         memory, or give each rank its own GPU (torch.cuda.set_device(hvd.local_rank()))."
    } else if has("mismatched nccl version") || has("version mismatch") {
        "The ranks load different versions of NCCL: install the same framework on all hosts, or name one copy in \
         RONDE_NCCL_LIBRARY."
    } else if has("out of memory") {
        "This GPU has no memory left for NCCL's buffers: use a smaller batch, or keep other processes off it."
    } else if has("/dev/shm") || has("no space left") {
        "/dev/shm is too small: start the container with --shm-size=1g or more."
    } else if has("no socket interface") || has("bootstrap : no") {
        "NCCL found no network interface to use: name one in NCCL_SOCKET_IFNAME."
    } else if has("driver version is insufficient") || has("cuda driver version") {
        "The GPU driver of this host is older than this NCCL needs: update the driver, or install a framework for an \
         older CUDA."
    } else {
        return None;
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who() -> Who {
        Who { rank: 3, host: "node7".into(), gpu: "GPU 1, NVIDIA H200".into() }
    }

    #[test]
    fn a_message_names_call_rank_host_gpu_and_what_nccl_said() {
        let text = explain("ncclAllReduce", &who(), SYSTEM_ERROR, "unhandled system error", "Call failed\n");
        assert!(
            text.starts_with(
                "ncclAllReduce failed on rank 3 on node7 (GPU 1, NVIDIA H200): unhandled system error (2). \
                 NCCL says: \"Call failed\". Usually"
            ),
            "{text}"
        );
        assert!(text.contains("NCCL_SOCKET_IFNAME") && text.contains("--shm-size"), "{text}");
    }

    #[test]
    fn silence_of_nccl_leaves_no_gap() {
        let text = explain("ncclGroupEnd", &who(), REMOTE_ERROR, "remote process exited", "");
        assert!(text.contains("remote process exited (6). Another rank failed"), "{text}");
    }

    #[test]
    fn the_line_nccl_left_counts_more_than_its_code() {
        let cases = [
            (
                INVALID_USAGE,
                "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 10",
                "RONDE_GPU_PATH",
            ),
            (INVALID_USAGE, "Mismatched NCCL version detected : rank 0 version 22703", "same framework"),
            (UNHANDLED_CUDA_ERROR, "Cuda failure 2 'out of memory'", "smaller batch"),
            (SYSTEM_ERROR, "Error while creating shared memory segment /dev/shm/nccl-x", "--shm-size"),
            (SYSTEM_ERROR, "Bootstrap : no socket interface found", "NCCL_SOCKET_IFNAME"),
            (
                UNHANDLED_CUDA_ERROR,
                "CUDA driver version is insufficient for CUDA runtime version",
                "update the driver",
            ),
        ];
        for (code, last, expected) in cases {
            assert!(usual(code, last).contains(expected), "{last}: {}", usual(code, last));
        }
    }

    #[test]
    fn every_code_has_its_own_advice_and_unknown_ones_some() {
        let mut seen = std::collections::BTreeSet::new();
        for code in UNHANDLED_CUDA_ERROR..=REMOTE_ERROR {
            assert!(seen.insert(usual(code, "")), "code {code} has the advice of another");
        }
        assert!(!usual(99, "").is_empty());
    }
}

//! The chief's output, line by line, as it comes.

use std::io::Write;
use std::time::Duration;

use futures::AsyncBufReadExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;

use crate::Error;
use crate::job::names;

/// Copies a pod's output to ours until it ends. A connection that breaks is opened again, and what was shown is skipped.
pub(crate) async fn follow(pods: Api<Pod>, pod: String) {
    let params = LogParams { container: Some(names::TRAIN.to_owned()), follow: true, ..LogParams::default() };
    let mut shown: u64 = 0;
    for _ in 0..60 {
        let mut stream = match pods.log_stream(&pod, &params).await {
            Ok(stream) => stream,
            Err(error) => {
                let error = Error::met("show the training's output", error);
                if let Error::Forbidden { .. } = error {
                    // The training goes on without being watched.
                    let _ = writeln!(std::io::stderr(), "warning: {error}");
                    return;
                }
                // Not there yet, or not any more.
                tokio::time::sleep(Duration::from_millis(500)).await;
                continue;
            }
        };
        let mut skip = shown;
        let mut line = Vec::new();
        loop {
            line.clear();
            match stream.read_until(b'\n', &mut line).await {
                Ok(0) => return,
                Ok(length) => {
                    let length = length as u64;
                    if skip >= length {
                        skip -= length;
                        continue;
                    }
                    let fresh = &line[usize::try_from(skip).unwrap_or(0)..];
                    skip = 0;
                    shown += fresh.len() as u64;
                    let mut out = std::io::stdout();
                    if out.write_all(fresh).and_then(|()| out.flush()).is_err() {
                        return;
                    }
                }
                Err(_) => break,
            }
        }
    }
}

/// The last lines of a pod's output, if they can be had.
pub(crate) async fn tail(pods: &Api<Pod>, pod: &str, lines: i64) -> Vec<String> {
    let params = LogParams {
        container: Some(names::TRAIN.to_owned()),
        tail_lines: Some(lines),
        ..LogParams::default()
    };
    let text = pods.logs(pod, &params).await.unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

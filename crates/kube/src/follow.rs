//! The chief's output, line by line, as it comes.
//!
//! A connection that breaks, ends early or has been silent for long is opened again, for as long as the container runs.
//! Lines are asked for with their times, by which those that were shown are known: the log may have been rotated meanwhile.

use std::io::Write;
use std::time::{Duration, Instant};

use futures::{AsyncBufRead, AsyncBufReadExt};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::LogParams;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::Error;
use crate::job::names;

/// How long to wait before the output is asked for again.
const PAUSE: Duration = Duration::from_millis(500);
/// How long nothing may come. A connection that was cut off, as by a laptop that slept, says nothing either.
const SILENCE: Duration = Duration::from_secs(300);
/// How long output may not be had before that is said.
const PATIENCE: Duration = Duration::from_secs(30);

/// A chief whose output is shown, and the task that does.
pub(crate) struct Following {
    pub(crate) pod: String,
    /// Which set of pods it is the chief of.
    pub(crate) attempt: u32,
    ended: watch::Sender<bool>,
    task: JoinHandle<bool>,
}

impl Following {
    /// Shows a chief's output as soon as this is done.
    pub(crate) fn start(
        pods: Api<Pod>,
        pod: &str,
        attempt: u32,
        first: impl Future<Output = ()> + Send + 'static,
    ) -> Following {
        let (ended, is_over) = watch::channel(false);
        let name = pod.to_owned();
        let task = tokio::spawn(async move {
            first.await;
            follow(pods, name, is_over).await
        });
        Following { pod: pod.to_owned(), attempt, ended, task }
    }

    /// The container has ended: what is left of its output is shown, and nothing waited for.
    pub(crate) fn has_ended(&self) {
        self.ended.send_replace(true);
    }

    /// Whether nothing more will be shown.
    #[cfg(test)]
    pub(crate) fn is_done(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits until all was shown, for as long as this at most; whether it was.
    pub(crate) async fn finish(mut self, patience: Duration) -> bool {
        self.has_ended();
        let shown = tokio::time::timeout(patience, &mut self.task).await;
        self.task.abort();
        matches!(shown, Ok(Ok(true)))
    }
}

/// Copies a pod's output to ours until the container has ended, which `ended` tells, and all of it was shown. If nobody is
/// left who could tell, it has ended. False if there is more that could not be had.
async fn follow(pods: Api<Pod>, pod: String, mut ended: watch::Receiver<bool>) -> bool {
    let mut shown = Shown::default();
    let mut failing: Option<Instant> = None;
    let mut is_told = false;
    loop {
        // Looked at before: what ends while it is read may have said more.
        let has_ended = *ended.borrow_and_update() || ended.has_changed().is_err();
        let params = LogParams {
            container: Some(names::TRAIN.to_owned()),
            follow: true,
            timestamps: true,
            since_time: shown.last,
            ..LogParams::default()
        };
        match pods.log_stream(&pod, &params).await {
            Ok(stream) => {
                failing = None;
                if !copy(stream, &mut shown, has_ended, &mut std::io::stdout()).await || has_ended {
                    return true;
                }
            }
            Err(error) => {
                let error = Error::met("show the training's output", error);
                let since = *failing.get_or_insert_with(Instant::now);
                let is_refused = matches!(error, Error::Forbidden { .. });
                if !is_told && (is_refused || since.elapsed() >= PATIENCE) {
                    // The training goes on without being watched.
                    let _ = writeln!(std::io::stderr(), "warning: {error}");
                    is_told = true;
                }
                if is_refused {
                    return true;
                }
                if has_ended {
                    return matches!(error, Error::Gone { .. });
                }
            }
        }
        tokio::select! {
            _ = ended.wait_for(|ended| *ended) => {}
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

/// What was shown: the time of the last line, and how many lines have that time.
#[derive(Clone, Copy, Debug, Default)]
struct Shown {
    last: Option<Timestamp>,
    count: u64,
}

/// Copies lines that were not shown before, until the stream ends, breaks or is silent; false if nobody reads them. A line
/// that has no end is shown if there can be no more of it.
async fn copy(
    mut stream: impl AsyncBufRead + Unpin,
    shown: &mut Shown,
    has_ended: bool,
    out: &mut impl Write,
) -> bool {
    let before = *shown;
    // How many lines of that time have come again.
    let mut again = 0;
    let mut line = Vec::new();
    loop {
        line.clear();
        match tokio::time::timeout(SILENCE, stream.read_until(b'\n', &mut line)).await {
            Ok(Ok(length)) if length > 0 && (has_ended || line.ends_with(b"\n")) => {}
            _ => return true,
        }
        let (at, text) = split(&line);
        if let Some(at) = at {
            again += u64::from(Some(at) == before.last);
            let is_old = before.last.is_some_and(|last| at < last || at == last && again <= before.count);
            if is_old {
                continue;
            }
            shown.count = if shown.last == Some(at) { shown.count + 1 } else { 1 };
            shown.last = Some(at);
        }
        if out.write_all(text).and_then(|()| out.flush()).is_err() {
            return false;
        }
    }
}

/// A line's time and the line itself; all of it where there is no time.
fn split(line: &[u8]) -> (Option<Timestamp>, &[u8]) {
    let at = line.iter().position(|byte| *byte == b' ').and_then(|space| {
        let time = str::from_utf8(&line[..space]).ok()?.parse().ok()?;
        Some((time, &line[space + 1..]))
    });
    at.map_or((None, line), |(time, text)| (Some(time), text))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[tokio::test]
    async fn output_of_a_pod_that_nobody_tells_of_any_more_is_asked_for_once_more() {
        let fake = Fake::default();
        let pods = Api::namespaced(fake.client(), "default");
        let (ended, is_over) = watch::channel(false);
        drop(ended);
        assert!(follow(pods, "mnist-chief".to_owned(), is_over).await);
        assert_eq!(fake.asked("GET /api/v1/namespaces/default/pods/mnist-chief/log"), 1);
    }

    #[tokio::test]
    async fn output_that_is_there_and_cannot_be_had_is_known_to_lack() {
        let fake = Fake::default();
        let pods: Api<Pod> = Api::namespaced(fake.client(), "default");
        let finish = |patience| Following::start(pods.clone(), "mnist-chief", 0, async {}).finish(patience);
        assert!(finish(Duration::MAX).await, "it is gone");
        fake.refuse((http::Method::GET, "/log", 500, "InternalError", "the kubelet does not answer"));
        assert!(!finish(Duration::MAX).await);
        fake.relent();
        fake.hold("/log");
        assert!(!finish(Duration::from_millis(10)).await);
    }

    #[tokio::test]
    async fn the_next_chief_is_followed_when_all_was_shown_of_the_last() {
        let fake = Fake::default();
        let pods: Api<Pod> = Api::namespaced(fake.client(), "default");
        let first = Following::start(pods.clone(), "mnist-chief", 0, async {});
        let rest = async { assert!(first.finish(Duration::MAX).await) };
        let then = Following::start(pods, "mnist-chief-r1", 1, rest);
        assert!(then.finish(Duration::MAX).await);
        let asked = fake.all_asked();
        let last = asked.iter().rposition(|line| line.ends_with("/mnist-chief/log"));
        let next = asked.iter().position(|line| line.ends_with("/mnist-chief-r1/log"));
        assert!(last.is_some() && last < next, "{asked:?}");
    }

    /// What is shown of streams that follow each other.
    async fn shown(streams: &[&str]) -> String {
        let (mut shown, mut out) = (Shown::default(), Vec::new());
        for stream in streams {
            let stream = futures::io::Cursor::new(stream.as_bytes());
            assert!(copy(stream, &mut shown, false, &mut out).await);
        }
        String::from_utf8(out).expect("text")
    }

    #[tokio::test]
    async fn a_line_is_shown_once_however_often_it_comes() {
        let first = "2026-01-01T00:00:01.5Z a\n2026-01-01T00:00:02.5Z b\n2026-01-01T00:00:02.5Z c\n";
        let again = "2026-01-01T00:00:02.5Z b\n2026-01-01T00:00:02.5Z c\n2026-01-01T00:00:02.5Z d\n2026-01-01T00:00:03Z e\n";
        assert_eq!(shown(&[first, again]).await, "a\nb\nc\nd\ne\n");
        assert_eq!(shown(&[first, again, again]).await, "a\nb\nc\nd\ne\n");
    }

    #[tokio::test]
    async fn half_a_line_waits_for_its_other_half() {
        let (mut shown, mut out) = (Shown::default(), Vec::new());
        let half = futures::io::Cursor::new(b"2026-01-01T00:00:01Z a\n2026-01-01T00:00:02Z epo");
        assert!(copy(half, &mut shown, false, &mut out).await);
        assert_eq!(out, b"a\n");
        let whole = futures::io::Cursor::new(b"2026-01-01T00:00:01Z a\n2026-01-01T00:00:02Z epoch 1");
        assert!(copy(whole, &mut shown, true, &mut out).await);
        assert_eq!(out, b"a\nepoch 1");
    }

    #[tokio::test]
    async fn what_a_rotated_log_has_lost_is_not_waited_for() {
        let first = "2026-01-01T00:00:01Z a\n2026-01-01T00:00:02Z b\n";
        assert_eq!(shown(&[first, "2026-01-01T00:00:09Z z\n"]).await, "a\nb\nz\n");
    }

    #[tokio::test]
    async fn lines_without_a_time_and_empty_ones_are_shown() {
        assert_eq!(
            shown(&["2026-01-01T00:00:01Z \n2026-01-01T00:00:02Z  two\nodd\n"]).await,
            "\n two\nodd\n"
        );
    }
}

//! What ranks print and how it arrives.

use std::collections::HashMap;
use std::fs;
use std::io::Write;

use crate::job::{Folder, Job, outcome, ronde, run_script, wait_until};

#[test]
fn standard_output_and_error_stay_apart_and_carry_the_rank() {
    let outcome = outcome(&mut ronde(&[
        "run",
        "-q",
        "-np",
        "2",
        "sh",
        "-c",
        "echo out $HOROVOD_RANK; echo err $HOROVOD_RANK >&2",
    ]));
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(sorted(&outcome.stdout), ["[0] out 0", "[1] out 1"]);
    assert_eq!(sorted(&outcome.stderr), ["[0] err 0", "[1] err 1"]);
}

#[test]
fn a_hundred_thousand_lines_of_each_rank_arrive_whole_and_in_order() {
    let outcome = outcome(&mut run_script(2, "seq -f '%.0f is a line of some length' 100000"));
    assert_eq!(outcome.code(), Some(0));
    let mut next: HashMap<&str, u32> = HashMap::new();
    for line in outcome.stdout.lines() {
        let (rank, text) = line.split_once("] ").unwrap_or_else(|| panic!("torn: {line:?}"));
        let count = next.entry(rank).or_insert(0);
        *count += 1;
        assert_eq!(text, format!("{count} is a line of some length"), "rank {rank}");
    }
    assert_eq!(next, HashMap::from([("[0", 100_000), ("[1", 100_000)]));
}

#[test]
fn the_prefix_can_be_left_out_or_carry_the_time() {
    let plain = outcome(&mut ronde(&["run", "--no-prefix", "-np", "1", "echo", "hello"]));
    assert_eq!(plain.stdout, "hello\n");
    let mut timed = ronde(&["run", "--prefix-output-with-timestamp", "-np", "1", "echo", "hello"]);
    let timed = outcome(&mut timed).stdout;
    let (time, rest) = timed.split_once(' ').expect("time and text");
    assert_eq!(rest, "[0] hello\n");
    assert!(time.len() == 24 && time.ends_with('Z') && time.contains('T'), "{time}");
}

#[test]
fn a_last_line_without_an_end_is_shown_and_progress_bars_become_lines_in_a_file() {
    let outcome = outcome(&mut run_script(1, r"printf '10%%\r20%%\rdone\r\nlast words'"));
    assert_eq!(outcome.stdout, "[0] 10%\n[0] 20%\n[0] done\n[0] last words\n");
}

#[test]
fn characters_and_colours_survive_being_written_in_pieces() {
    let program = std::env::current_exe().expect("this binary");
    let mut command = ronde(&["run", "-np", "1"]);
    command.arg(program).args(["--exact", "output::writes_in_pieces_as_a_rank", "--nocapture"]);
    let outcome = outcome(command.env(PIECES, ""));
    assert!(outcome.stdout.contains("\n[0] \u{1b}[31mgröße\u{1b}[0m\n"), "{}", outcome.stdout);
}

/// Whether this binary is the rank of that test.
const PIECES: &str = "RONDE_TEST_PIECES";

/// Not a test of its own: writes "größe" in red, cut inside both two-byte characters, each piece when the one before it
/// was read.
#[test]
fn writes_in_pieces_as_a_rank() {
    if std::env::var_os(PIECES).is_none() {
        return;
    }
    let mut stdout = std::io::stdout();
    for piece in [&b"\n\x1b[31mgr\xc3"[..], b"\xb6\xc3", b"\x9fe\x1b[0m\n"] {
        stdout.write_all(piece).and_then(|()| stdout.flush()).expect("written");
        wait_until("the pipe is not emptied", || rustix::io::ioctl_fionread(&stdout).expect("a pipe") == 0);
    }
}

#[test]
fn lines_arrive_while_the_job_runs() {
    let script = "echo early; sleep 1000"; // sleep: runs until it is killed
    let mut job = Job::start(&mut run_script(1, script));
    assert_eq!(job.line(), "[0] early");
}

#[test]
fn output_is_also_kept_in_files_that_sort_by_rank() {
    let folder = Folder::new("logs");
    let logs = folder.0.join("deep/logs");
    let script = "echo out $HOROVOD_RANK; printf 'err' >&2";
    let outcome = outcome(&mut ronde(&[
        "run",
        "-np",
        "11",
        "--output-filename",
        &logs.to_string_lossy(),
        "sh",
        "-c",
        script,
    ]));
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    assert_eq!(outcome.stdout.lines().count(), 11, "still shown");
    let read = |name: &str| fs::read_to_string(logs.join(name)).expect(name);
    assert_eq!(read("rank.00/stdout"), "out 0\n");
    assert_eq!(read("rank.10/stdout"), "out 10\n");
    assert_eq!(read("rank.07/stderr"), "err");
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error_before_anything_starts() {
    let folder = Folder::new("no-logs");
    let file = folder.file("in-the-way", "");
    let outcome = outcome(&mut ronde(&[
        "run",
        "-np",
        "1",
        "--output-filename",
        &file.to_string_lossy(),
        "echo",
        "ran",
    ]));
    assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(1), ""));
    assert!(outcome.stderr.contains("in-the-way/rank.0"), "{}", outcome.stderr);
}

#[test]
fn ranks_read_nothing_from_the_terminal() {
    let outcome = outcome(&mut run_script(2, "cat; echo end of input"));
    assert_eq!(outcome.stdout.lines().count(), 2, "{}", outcome.stdout);
}

#[test]
fn the_job_ends_when_nobody_reads_its_output_any_more() {
    let script = "while echo more; do :; done; sleep 1000"; // sleep: runs until it is stopped
    let mut job = Job::start(&mut run_script(2, script));
    job.line();
    job.close_stdout();
    assert_eq!(job.status().code(), Some(141));
    job.await_gone();
}

#[test]
fn a_page_gets_every_line_as_an_object_with_its_rank_and_stream() {
    let folder = Folder::new("task-output");
    let payload = folder.file("call", "");
    let results = folder.0.join("results");
    let outcome = outcome(&mut ronde(&[
        "run",
        "-q",
        "-np",
        "1",
        "--task-output",
        "--task-payload",
        payload.to_str().expect("UTF-8"),
        "--task-results",
        results.to_str().expect("UTF-8"),
        "sh",
        "-c",
        r#"printf '10%%\r20%%\n"last"'; echo no >&2"#,
    ]));
    assert_eq!((outcome.code(), outcome.stderr.as_str()), (Some(0), ""));
    let mut lines: Vec<serde_json::Value> =
        outcome.stdout.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    assert_eq!(lines.remove(0), serde_json::json!({ "hosts": ["localhost"] }));
    // The two streams are in order each, but not with each other.
    lines.sort_by_key(|line| line["stream"] == "stdout");
    let line =
        |stream, text, end| serde_json::json!({ "rank": 0, "stream": stream, "text": text, "end": end });
    let expected = [
        line("stderr", "no", "newline"),
        line("stdout", "10%", "return"),
        line("stdout", "20%", "newline"),
        line("stdout", "\"last\"", "newline"),
    ];
    assert_eq!(lines, expected);
}

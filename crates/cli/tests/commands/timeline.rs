//! `ronde timeline merge`: traces of several ranks become one.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::job::{Folder, Outcome, outcome, ronde};

/// What a rank wrote that reduced one tensor.
fn trace(rank: u64, start: i64, clock_offset: i64) -> String {
    format!(
        r#"[
{{"name":"process_name","ph":"M","pid":0,"args":{{"name":"rank {rank}","start_time_since_epoch_in_micros":{start},"clock_offset_in_micros":{clock_offset},"rank":{rank}}}}},
{{"name":"process_sort_index","ph":"M","pid":0,"args":{{"sort_index":0}}}},
{{"name":"CYCLE_START","ph":"i","pid":0,"ts":5,"s":"g"}},
{{"name":"process_name","ph":"M","pid":1,"args":{{"name":"allreduce.x"}}}},
{{"name":"process_sort_index","ph":"M","pid":1,"args":{{"sort_index":1}}}},
{{"name":"ALLREDUCE","ph":"B","pid":1,"ts":10}},
{{"ph":"E","pid":1,"ts":30,"args":{{"dtype":"float32","shape":"[3]"}}}}
]
"#
    )
}

fn merge(folder: &Folder, files: &[&str]) -> Outcome {
    outcome(ronde(&["timeline", "merge"]).args(files).current_dir(&folder.0))
}

fn events(path: &Path) -> Vec<Value> {
    serde_json::from_str(&fs::read_to_string(path).expect("the merged file")).expect("one array")
}

/// The events that have this value.
fn found<'a>(events: &'a [Value], key: &str, value: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event[key] == value).collect()
}

#[test]
fn ranks_are_named_and_their_clocks_aligned() {
    let folder = Folder::new("merge");
    // Rank 1 began 1000 microseconds after rank 0, but its clock is 400 behind.
    folder.file("1.json", &trace(1, 1_000_600, 400));
    folder.file("0.json", &trace(0, 1_000_000, 0));
    let outcome = merge(&folder, &["all.json", "1.json", "0.json"]);
    assert_eq!((outcome.code(), outcome.stderr.as_str()), (Some(0), ""));
    assert!(outcome.stdout.starts_with("all.json: 15 events of 2 ranks;"), "{}", outcome.stdout);

    let events = events(&folder.0.join("all.json"));
    assert_eq!(events[0]["args"]["start_time_since_epoch_in_micros"], 1_000_000);
    assert_eq!(events[0]["args"]["ranks"], serde_json::json!([0, 1]));
    let names: Vec<(&Value, &Value)> = found(&events, "name", "process_name")
        .into_iter()
        .map(|event| (&event["pid"], &event["args"]["name"]))
        .collect();
    let expected = [(1, "rank 0"), (2, "rank 0: allreduce.x"), (3, "rank 1"), (4, "rank 1: allreduce.x")];
    assert_eq!(names, expected.map(|(pid, name)| (pid.into(), name.into())).each_ref().map(|(a, b)| (a, b)));
    for event in found(&events, "name", "process_sort_index") {
        assert_eq!(event["pid"], event["args"]["sort_index"]);
    }
    let times = |key, value| -> Vec<(i64, i64)> {
        let number = |value: &Value| value.as_i64().expect("a number");
        found(&events, key, value).iter().map(|event| (number(&event["pid"]), number(&event["ts"]))).collect()
    };
    assert_eq!(times("ph", "B"), [(2, 10), (4, 1010)]);
    assert_eq!(times("ph", "E"), [(2, 30), (4, 1030)]);
    assert_eq!(times("name", "CYCLE_START"), [(1, 5), (3, 1005)]);
    assert!(
        found(&events, "name", "CYCLE_START").iter().all(|event| event["s"] == "p"),
        "each its own rank's"
    );
}

#[test]
fn a_file_of_a_killed_rank_is_taken_as_far_as_it_goes() {
    let folder = Folder::new("cut-off");
    folder.file("0.json", &trace(0, 1_000_000, 0));
    let whole = trace(1, 1_000_000, 0);
    folder.file("1.json", &whole[..whole.find("\"dtype\"").expect("an end")]);
    let outcome = merge(&folder, &["all.json", "0.json", "1.json"]);
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    assert!(outcome.stderr.starts_with("note: 1.json ends in the middle"), "{}", outcome.stderr);
    let events = events(&folder.0.join("all.json"));
    assert_eq!((found(&events, "ph", "B").len(), found(&events, "ph", "E").len()), (2, 1));
}

#[test]
fn a_file_of_horovods_own_is_rank_0() {
    let folder = Folder::new("horovods");
    let horovods = r#"[
{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros":1000}},
{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "allreduce.x"}},
{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 7, "pid": 1},
"#;
    folder.file("theirs.json", horovods);
    folder.file("1.json", &trace(1, 500, 0));
    let outcome = merge(&folder, &["all.json", "1.json", "theirs.json"]);
    assert_eq!(outcome.code(), Some(0), "{outcome:?}");
    let events = events(&folder.0.join("all.json"));
    let negotiation = found(&events, "name", "NEGOTIATE_ALLREDUCE");
    assert_eq!((&negotiation[0]["pid"], &negotiation[0]["ts"]), (&2.into(), &507.into()));
    let names = found(&events, "name", "process_name");
    assert_eq!(names[1]["args"]["name"], "rank 0: allreduce.x");
}

#[test]
fn what_cannot_be_merged_is_refused_by_name() {
    let folder = Folder::new("refused");
    folder.file("0.json", &trace(0, 1, 0));
    folder.file("again.json", &trace(0, 2, 0));
    folder.file("words.json", "[\nhello\n]");
    folder.file("no-start.json", "[]");
    let refused = |files: &[&str], words: &[&str]| {
        let outcome = merge(&folder, files);
        assert_eq!((outcome.code(), outcome.stdout.as_str()), (Some(1), ""), "{files:?}");
        for word in words {
            assert!(outcome.stderr.contains(word), "{word:?} not in {}", outcome.stderr);
        }
    };
    refused(&["all.json", "0.json", "missing.json"], &["error: cannot read missing.json: No such file"]);
    refused(&["all.json", "words.json"], &["error: cannot use words.json", "line 2"]);
    refused(&["all.json", "no-start.json"], &["no-start.json", "does not say when it began"]);
    refused(&["all.json", "0.json", "again.json"], &["0.json and again.json are both of rank 0", "\nhint: "]);
    refused(&["0.json", "./0.json"], &["./0.json is to be written", "\nhint: "]);
    refused(&["no-folder/all.json", "0.json"], &["error: cannot write no-folder/all.json"]);
    assert!(!folder.0.join("all.json").exists(), "nothing was written");
    assert_eq!(fs::read_to_string(folder.0.join("0.json")).expect("still there"), trace(0, 1, 0));
}

#[test]
fn wrong_usage_names_what_is_missing() {
    let folder = Folder::new("usage");
    let outcome = merge(&folder, &["all.json"]);
    assert_eq!(outcome.code(), Some(2));
    assert!(outcome.stderr.contains("<FILE>..."), "{}", outcome.stderr);
}

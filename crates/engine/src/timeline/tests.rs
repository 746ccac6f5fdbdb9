//! Events in, files out. That a killed process leaves a whole file is tested in `tests/timeline_killed.rs`.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::*;

/// A folder that is gone after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ronde-timeline-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).expect("folder");
        Folder(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a name in UTF-8").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A timeline whose writer only writes when it is stopped.
fn unhurried(path: &str, capacity: usize) -> Timeline {
    Timeline::record(path, 0, true, 0, capacity, Duration::from_secs(3600)).expect("a timeline")
}

fn events(path: &str) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("the file");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

/// What was written about one process, as `phase name` each, metadata left out.
fn course(events: &[Value], pid: u64) -> Vec<String> {
    let of_process = events.iter().filter(|event| event["pid"] == pid && event["ph"] != "M");
    let text = |event: &Value| {
        let name = event["name"].as_str().unwrap_or_default();
        format!("{} {name}", event["ph"].as_str().expect("a phase")).trim_end().to_owned()
    };
    of_process.map(text).collect()
}

/// An allreduce from offer to end.
fn allreduce(timeline: &Timeline, name: &Arc<str>) {
    timeline.mark_cycle();
    timeline.negotiate_start(name.clone(), "ALLREDUCE");
    timeline.negotiate_rank_ready(name.clone(), 0);
    timeline.negotiate_rank_ready(name.clone(), 1);
    timeline.negotiate_end(name.clone());
    timeline.start(name.clone(), "ALLREDUCE");
    timeline.activity_start(name.clone(), "MEMCPY_IN_FUSION_BUFFER");
    timeline.activity_end(name.clone());
    timeline.end(name.clone(), "float32", &[17, 2]);
}

const WHOLE_COURSE: [&str; 8] =
    ["B NEGOTIATE_ALLREDUCE", "X 0", "X 1", "E", "B ALLREDUCE", "B MEMCPY_IN_FUSION_BUFFER", "E", "E"];

#[test]
fn an_operation_is_told_from_offer_to_end() {
    let folder = Folder::new("course");
    let path = folder.path("trace.json");
    let timeline = Timeline::open(&path, 0, true, -250).expect("writable").expect("rank 0 writes");
    allreduce(&timeline, &"allreduce.test_allreduce".into());
    timeline.stop().expect("written");
    let events = events(&path);
    assert_eq!(course(&events, 1), WHOLE_COURSE);
    assert_eq!(course(&events, 0), ["i CYCLE_START"]);

    let opening = &events[0];
    assert_eq!((&opening["ph"], &opening["pid"]), (&"M".into(), &0.into()));
    let start = opening["args"]["start_time_since_epoch_in_micros"].as_u64().expect("a start");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_micros();
    let age = now.saturating_sub(u128::from(start));
    assert!(age < 60_000_000, "started {age} microseconds ago");
    assert_eq!(opening["args"]["clock_offset_in_micros"], -250);
    assert_eq!(opening["args"]["rank"], 0);

    let about = |name: &str| {
        let found = events.iter().find(|event| event["name"] == name && event["pid"] == 1);
        found.unwrap_or_else(|| panic!("no {name}"))["args"].clone()
    };
    assert_eq!(about("process_name")["name"], "allreduce.test_allreduce");
    assert_eq!(about("process_sort_index")["sort_index"], 1);
    let last = events.last().expect("events");
    assert_eq!(last["args"], serde_json::json!({"dtype": "float32", "shape": "[17, 2]"}));
    let times: Vec<u64> = events.iter().filter_map(|event| event["ts"].as_u64()).collect();
    assert!(times.is_sorted() && times.len() == 9, "{times:?}");
    let mark = events.iter().find(|event| event["ph"] == "i").expect("a mark");
    assert_eq!(mark["s"], "g");
    let ready = events.iter().find(|event| event["ph"] == "X").expect("a rank");
    assert_eq!(ready["dur"], 0);
}

#[test]
fn each_name_is_a_process_of_its_own_and_keeps_it() {
    let folder = Folder::new("names");
    let path = folder.path("trace.json");
    let timeline = unhurried(&path, CAPACITY);
    for _ in 0..3 {
        allreduce(&timeline, &"a".into());
        allreduce(&timeline, &"b \"quoted\"\\\n".into());
    }
    timeline.stop().expect("written");
    let events = events(&path);
    assert_eq!((course(&events, 1).len(), course(&events, 2).len()), (24, 24));
    let names = events.iter().filter(|event| event["name"] == "process_name");
    let names: Vec<&Value> = names.map(|event| &event["args"]["name"]).collect();
    assert_eq!(names, ["rank 0", "a", "b \"quoted\"\\\n"]);
}

#[test]
fn the_file_is_complete_after_every_flush() {
    let folder = Folder::new("flushes");
    let path = folder.path("trace.json");
    let opening = Opening { rank: 0, start: 0, clock_offset_us: 0 };
    let mut trace = Trace::begin(File::create(&path).expect("writable"), &opening).expect("begun");
    let mut seen = events(&path).len();
    for round in 0..50 {
        let name: Arc<str> = format!("tensor {}", round % 3).into();
        trace.add(Event { at: round, what: What::Start { name, kind: "BROADCAST" } }).expect("added");
        assert_eq!(events(&path).len(), seen, "nothing is written before the flush");
        trace.flush().expect("written");
        let now = events(&path).len();
        assert!(now > seen);
        seen = now;
    }
}

#[test]
fn events_reach_the_file_while_the_job_runs() {
    let folder = Folder::new("running");
    let path = folder.path("trace.json");
    let timeline = Timeline::open(&path, 0, false, 0).expect("writable").expect("rank 0 writes");
    allreduce(&timeline, &"a".into());
    let asked = Instant::now();
    while !fs::read_to_string(&path).expect("the file").contains("float32") {
        assert!(asked.elapsed() < Duration::from_secs(30), "nothing was written");
        std::thread::yield_now();
    }
    assert_eq!(course(&events(&path), 0), [""; 0], "cycles are marked only if asked for");
}

#[test]
fn events_beyond_the_queue_are_dropped_and_counted_and_leave_nothing_dangling() {
    let folder = Folder::new("dropped");
    let path = folder.path("trace.json");
    let name: Arc<str> = "a".into();
    let timeline = unhurried(&path, 7);
    allreduce(&timeline, &name);
    allreduce(&timeline, &name);
    assert_eq!(timeline.dropped(), 11);
    timeline.stop().expect("written");
    let events = events(&path);
    assert_eq!(course(&events, 1), WHOLE_COURSE[..6]);
    let told = events.iter().find(|event| event["name"] == "dropped_events").expect("told");
    assert_eq!(told["args"]["events"], 11);
}

#[test]
fn an_end_closes_what_is_open_and_never_more() {
    let folder = Folder::new("nesting");
    let path = folder.path("trace.json");
    let timeline = unhurried(&path, CAPACITY);
    timeline.end("lost its beginning", "float32", &[]);
    timeline.negotiate_end("lost its beginning");
    timeline.start("lost its ends", "ALLGATHER");
    timeline.activity_start("lost its ends", "QUEUE");
    timeline.negotiate_start("lost its ends", "ALLGATHER");
    timeline.start("lost its ends", "ALLGATHER");
    timeline.activity_end("lost its ends");
    timeline.activity_start("lost its ends", "QUEUE");
    timeline.end("lost its ends", "float32", &[3]);
    timeline.stop().expect("written");
    let events = events(&path);
    assert_eq!(course(&events, 1), [""; 0]);
    let expected = [
        "B ALLGATHER",
        "B QUEUE",
        "E",
        "E",
        "B NEGOTIATE_ALLGATHER",
        "E",
        "B ALLGATHER",
        "B QUEUE",
        "E",
        "E",
    ];
    assert_eq!(course(&events, 2), expected);
    assert_eq!(
        events.last().expect("events")["args"]["shape"],
        "[3]",
        "the operation's own end has its shape"
    );
}

#[test]
fn ranks_write_files_of_their_own_if_the_name_says_so() {
    let folder = Folder::new("ranks");
    let own = folder.path("trace-{rank}.json");
    let timeline = Timeline::open(&own, 3, false, 0).expect("writable").expect("every rank writes");
    timeline.stop().expect("written");
    assert_eq!(events(&folder.path("trace-3.json"))[0]["args"]["name"], "rank 3");
    let common = folder.path("trace.json");
    assert!(Timeline::open(&common, 3, false, 0).expect("nothing to do").is_none());
    assert!(!fs::exists(&common).expect("looked"));
}

#[test]
fn a_file_that_cannot_be_written_is_an_error() {
    let folder = Folder::new("unwritable");
    let missing = folder.path("no-such-folder/trace.json");
    let error = Timeline::open(&missing, 0, false, 0).err().expect("no folder");
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    let error = Timeline::open("/dev/full", 0, false, 0).err().expect("no space");
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
}

#[test]
fn after_stopping_events_go_nowhere_and_stopping_again_is_nothing() {
    let folder = Folder::new("stopped");
    let path = folder.path("trace.json");
    let timeline = unhurried(&path, CAPACITY);
    timeline.stop().expect("written");
    let before = events(&path).len();
    allreduce(&timeline, &"late".into());
    timeline.stop().expect("nothing to do");
    drop(timeline);
    assert_eq!(events(&path).len(), before);
}

//! A process killed while it writes a timeline leaves a file that can be read.
//!
//! This program is both sides. As the child it records events without end and says after a while that it does; as the
//! parent it kills the child then, and reads what is left: a complete array, or, should the kernel have cut a write short,
//! one that is complete again without its last line.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use ronde_engine::timeline::Timeline;
use serde_json::Value;

const ROLE: &str = "RONDE_TIMELINE_TEST_FILE";
const KILLS: usize = 10;

fn main() -> ExitCode {
    if let Ok(path) = std::env::var(ROLE) {
        record(&path);
    }
    let folder = std::env::temp_dir().join(format!("ronde-timeline-killed-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("folder");
    let complaints: Vec<String> = (0..KILLS).filter_map(|kill| scenario(&folder, kill).err()).collect();
    let _ = fs::remove_dir_all(&folder);
    let (passed, failed) = (KILLS - complaints.len(), complaints.len());
    for complaint in complaints {
        println!("{complaint}");
    }
    // The line by which the closing summary of all tests counts this one.
    let verdict = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {verdict}. {passed} passed; {failed} failed; 0 ignored");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The child: operations without end.
fn record(path: &str) -> ! {
    let timeline = Timeline::open(path, 0, true, 0).expect("writable").expect("rank 0 writes");
    let names: Vec<Arc<str>> = (0..100).map(|number| format!("allreduce.{number}").into()).collect();
    let mut announced = false;
    loop {
        for name in &names {
            timeline.start(name.clone(), "ALLREDUCE");
            timeline.end(name.clone(), "float32", &[1000]);
        }
        timeline.mark_cycle();
        if !announced && fs::metadata(path).expect("the file").len() > 1 << 20 {
            announced = true;
            println!("recording");
        }
    }
}

fn scenario(folder: &std::path::Path, kill: usize) -> Result<(), String> {
    let path = folder.join(format!("{kill}.json"));
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .env(ROLE, &path)
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program starts");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("readable");
    child.kill().expect("the child is there");
    child.wait().expect("the child has ended");
    let text = fs::read_to_string(&path).map_err(|error| format!("kill {kill}: {error}"))?;
    let events = array(&text).or_else(|_| {
        let (whole, _cut) = text.rsplit_once(",\n").unwrap_or((&text, ""));
        array(&format!("{whole}\n]"))
    });
    match events {
        Ok(events) if events.len() > 1000 && line == "recording\n" => Ok(()),
        Ok(events) => Err(format!("kill {kill}: only {} events, after {line:?}", events.len())),
        Err(error) => Err(format!("kill {kill}: {error}")),
    }
}

fn array(text: &str) -> Result<Vec<Value>, serde_json::Error> {
    serde_json::from_str(text)
}

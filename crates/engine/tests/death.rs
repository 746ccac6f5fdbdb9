//! A rank killed at any point of a collective: every other rank must return an error that names it.
//!
//! This program is both sides. As the parent it serves the rendezvous, starts itself once for each rank, waits until all
//! are in the middle of collectives, kills one with SIGKILL after a random moment, and reads what the survivors say.
//! `RONDE_KILLS` says how many kills for each layout (default 4). How fast survivors answered is printed, not judged;
//! one that does not answer at all within `LIMIT` fails the test.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ronde_collective::types::{DType, ReduceOp};
use ronde_engine::{Engine, Error, MEMORY_DOMAIN, Settings};
use ronde_rendezvous::Server;
use ronde_trust::Secret;

const ROLE: &str = "RONDE_DEATH_TEST_RANK";
/// A rank has to answer, but no test depends on how fast it does: the machine may be busy.
const LIMIT: Duration = Duration::from_secs(60);
const LAYOUTS: [&[usize]; 6] = [&[2], &[4], &[1, 1, 1], &[2, 2], &[3, 1], &[1, 2, 1]];

fn main() -> ExitCode {
    if std::env::var_os(ROLE).is_some() {
        return rank();
    }
    let kills: usize = std::env::var("RONDE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let (mut passed, mut failed) = (0, 0);
    let mut seed = std::process::id();
    for layout in LAYOUTS {
        for kill in 0..kills {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match scenario(layout, seed >> 8) {
                Ok(slowest) => {
                    passed += 1;
                    println!(
                        "test kill {kill} in layout {layout:?} ... ok, last survivor knew after {slowest:?}"
                    );
                }
                Err(complaint) => {
                    failed += 1;
                    println!("test kill {kill} in layout {layout:?} ... FAILED\n{complaint}");
                }
            }
        }
    }
    println!("\n{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A rank: collectives without end, until one fails.
fn rank() -> ExitCode {
    let settings = Settings::from_environment(|_| None);
    let engine = match Engine::start(Arc::new(|| false), settings, &[]) {
        Ok(engine) => engine,
        Err(error) => {
            println!("failed to start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut round = 0usize;
    loop {
        if let Err(error) = collectives(&engine, round) {
            println!("error: {error}");
            return ExitCode::SUCCESS;
        }
        if round == 2 {
            println!("running");
        }
        round += 1;
    }
}

fn collectives(engine: &Engine, round: usize) -> Result<(), Error> {
    let size = engine.place().size;
    for bytes in [4usize, 40_000, 3_000_000] {
        let mut buffer = vec![1u8; bytes];
        engine.allreduce(&format!("sum {bytes}"), &mut buffer, DType::F32, ReduceOp::Sum)?;
        engine.broadcast(&format!("from a root {bytes}"), &mut buffer, round % size)?;
    }
    let whole = engine.allgather("gather", &vec![0u8; 30_000])?;
    engine.alltoall("exchange", &vec![0u8; whole.shape[0] as usize])?;
    engine.barrier("meet")
}

struct Rank {
    child: Child,
    lines: Receiver<(Instant, String)>,
}

impl Rank {
    fn start(
        number: usize,
        size: usize,
        host: usize,
        server: &Server,
        secret_file: &str,
    ) -> std::io::Result<Rank> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(ROLE, "1")
            .env("HOROVOD_RANK", number.to_string())
            .env("HOROVOD_SIZE", size.to_string())
            .env("RONDE_RENDEZVOUS", server.addr().to_string())
            .env("RONDE_SECRET_FILE", secret_file)
            .env(MEMORY_DOMAIN, format!("host {host}"))
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        Ok(Rank { child, lines })
    }

    fn line(&self) -> Result<(Instant, String), String> {
        self.lines.recv_timeout(LIMIT).map_err(|why| format!("no word within {LIMIT:?} ({why})"))
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One kill. Returns how long after it the last survivor answered.
fn scenario(layout: &[usize], random: u32) -> Result<Duration, String> {
    let secret = Secret::random().map_err(|error| error.to_string())?;
    let file = std::env::temp_dir().join(format!("ronde-death-{}-{random}", std::process::id()));
    std::fs::write(&file, secret.to_hex().as_bytes()).map_err(|error| error.to_string())?;
    let outcome = kill_one(layout, random, secret, &file.to_string_lossy());
    let _ = std::fs::remove_file(&file);
    outcome
}

fn kill_one(layout: &[usize], random: u32, secret: Secret, secret_file: &str) -> Result<Duration, String> {
    let size: usize = layout.iter().sum();
    let server =
        Server::start(([127, 0, 0, 1], 0).into(), secret, size).map_err(|error| error.to_string())?;
    let hosts = layout.iter().enumerate().flat_map(|(host, &count)| std::iter::repeat_n(host, count));
    let mut ranks = Vec::new();
    for (number, host) in hosts.enumerate() {
        ranks.push(Rank::start(number, size, host, &server, secret_file).map_err(|error| error.to_string())?);
    }
    for (number, rank) in ranks.iter().enumerate() {
        let (_, line) = rank.line().map_err(|error| format!("rank {number} at the start: {error}"))?;
        if line != "running" {
            return Err(format!("rank {number} said {line:?} before anything was killed"));
        }
    }
    let moment = Duration::from_micros(u64::from(random % 20_000));
    std::thread::sleep(moment); // sleep: the kill is meant to come anywhere in a collective
    let victim = random as usize / 20_000 % size;
    let killed = Instant::now();
    ranks[victim].child.kill().map_err(|error| error.to_string())?;
    let mut slowest = Duration::ZERO;
    for (number, rank) in ranks.iter().enumerate().filter(|(number, _)| *number != victim) {
        let (at, line) =
            rank.line().map_err(|error| format!("rank {number} after the death of {victim}: {error}"))?;
        if !line.contains(&format!("rank {victim} ")) {
            return Err(format!("rank {number} said {line:?}, which does not name rank {victim}"));
        }
        slowest = slowest.max(at.saturating_duration_since(killed));
    }
    Ok(slowest)
}

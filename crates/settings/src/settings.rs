//! What the engine needs to know of the variables, read once and typed.

use std::path::PathBuf;
use std::time::Duration;

use crate::gpu_path::GpuPath;
use crate::log::Level;
use crate::note::Note;
use crate::reading::Reading;
use crate::registry::{gpu, moving, place, telling};
use crate::value;

/// The variables that steer the engine; the meaning of each is in the [`crate::registry`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How many bytes of tensors may travel as one batch; 0: one tensor a batch.
    pub fusion_threshold: usize,
    /// How long a tensor may wait for others to make a batch with.
    pub cycle_time: Duration,
    /// How many tensors a process set remembers; 0: none.
    pub cache_capacity: usize,
    /// Whether grouped operations keep to themselves.
    pub disable_group_fusion: bool,
    /// Whether process sets may be added and removed after the start.
    pub dynamic_process_sets: bool,
    /// Whether the number of ranks may change while the job runs.
    pub elastic: bool,
    /// Whether repeated runs must give the same bits.
    pub deterministic: bool,
    /// Core numbers for the engine's thread, by local rank. Empty, or at least as many as the host has ranks.
    pub thread_affinity: Vec<usize>,
    /// The network interface for traffic between ranks; `None`: the one that leads to the rendezvous.
    pub interface: Option<String>,
    /// Which way tensors on GPUs take.
    pub gpu_path: GpuPath,
    /// The NCCL library to open; `None`: the framework's copy, or the system's.
    pub nccl_library: Option<PathBuf>,
    /// How many streams NCCL works on; at least 1.
    pub num_nccl_streams: usize,
    /// How long a rank that does not answer is waited for.
    pub peer_timeout: Duration,
    /// After how long a stalled tensor is reported; `None`: never.
    pub stall_warning: Option<Duration>,
    /// After how long a stalled tensor ends the job; `None`: never.
    pub stall_shutdown: Option<Duration>,
    /// Whether and where a timeline is written.
    pub timeline: Option<TimelineTarget>,
    /// Whether the timeline shows each time the engine looked for work.
    pub timeline_mark_cycles: bool,
    /// The least important messages to show.
    pub log_level: Level,
    /// Whether messages come without the time.
    pub log_hide_time: bool,
}

/// Where the timeline goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimelineTarget {
    /// Nowhere yet: the script will start it.
    Dynamic,
    /// Into this file; `{rank}` in it stands for the rank.
    File(String),
}

impl Settings {
    /// Reads the variables through `var`. The notes are lines that rank 0 should show once.
    pub fn from_environment(var: impl Fn(&str) -> Option<String>) -> (Settings, Vec<Note>) {
        let mut reading = Reading::new(var);
        let thread_affinity = thread_affinity(&mut reading);
        let (stall_warning, stall_shutdown) = stall_times(&mut reading);
        let settings = Settings {
            fusion_threshold: reading.size(&moving::FUSION_THRESHOLD),
            cycle_time: reading.read(&moving::CYCLE_TIME, value::milliseconds).unwrap_or_default(),
            cache_capacity: reading.size(&moving::CACHE_CAPACITY),
            disable_group_fusion: reading.switch(&moving::DISABLE_GROUP_FUSION),
            dynamic_process_sets: reading.switch(&moving::DYNAMIC_PROCESS_SETS),
            elastic: reading.switch(&place::ELASTIC),
            deterministic: reading.switch(&moving::DETERMINISTIC),
            thread_affinity,
            interface: reading.text(&place::GLOO_IFACE),
            gpu_path: reading.read(&gpu::GPU_PATH, GpuPath::parse).unwrap_or_default(),
            nccl_library: reading.text(&gpu::NCCL_LIBRARY).map(PathBuf::from),
            num_nccl_streams: reading.read(&gpu::NUM_NCCL_STREAMS, value::positive_count).unwrap_or(1),
            peer_timeout: reading
                .read(&place::GLOO_TIMEOUT_SECONDS, value::positive_seconds)
                .unwrap_or_default(),
            stall_warning,
            stall_shutdown,
            timeline: reading.text(&telling::TIMELINE).map(|text| match text.as_str() {
                "DYNAMIC" => TimelineTarget::Dynamic,
                _ => TimelineTarget::File(text),
            }),
            timeline_mark_cycles: reading.switch(&telling::TIMELINE_MARK_CYCLES),
            log_level: reading.read(&telling::LOG_LEVEL, Level::parse).unwrap_or_default(),
            log_hide_time: reading.switch(&telling::LOG_HIDE_TIME),
        };
        reading.explain();
        (settings, reading.into_notes())
    }
}

impl Default for Settings {
    /// What counts when no variable is set.
    fn default() -> Settings {
        Settings::from_environment(|_| None).0
    }
}

fn thread_affinity(reading: &mut Reading<impl Fn(&str) -> Option<String>>) -> Vec<usize> {
    let name = moving::THREAD_AFFINITY.name;
    let Some(cores) = reading.read(&moving::THREAD_AFFINITY, value::cores) else {
        return Vec::new();
    };
    // Whoever joins the job complains about a wrong number of ranks; here it only must not hide the list.
    let local_size = reading.text(&place::LOCAL_SIZE).and_then(|text| text.parse().ok()).unwrap_or(1);
    if cores.len() < local_size {
        let text = format!(
            "{name} names {} for {local_size} ranks on this host; it is ignored, give one core for each",
            if cores.len() == 1 { "1 core".to_owned() } else { format!("{} cores", cores.len()) },
        );
        reading.note(&moving::THREAD_AFFINITY, text);
        return Vec::new();
    }
    cores
}

fn stall_times(
    reading: &mut Reading<impl Fn(&str) -> Option<String>>,
) -> (Option<Duration>, Option<Duration>) {
    let warning = reading.seconds(&telling::STALL_CHECK_TIME);
    let shutdown = reading.seconds(&telling::STALL_SHUTDOWN_TIME);
    if reading.switch(&telling::STALL_CHECK_DISABLE) {
        return (None, None);
    }
    match (warning, shutdown) {
        (Some(warning), Some(shutdown)) if shutdown < warning => {
            let text = format!(
                "{}={} is ignored: it is shorter than the {} seconds after which a stall is reported ({})",
                telling::STALL_SHUTDOWN_TIME.name,
                shutdown.as_secs_f64(),
                warning.as_secs_f64(),
                telling::STALL_CHECK_TIME.name,
            );
            reading.note(&telling::STALL_SHUTDOWN_TIME, text);
            (Some(warning), None)
        }
        both => both,
    }
}

#[cfg(test)]
mod tests;

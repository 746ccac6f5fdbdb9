//! Values in, settings and notes out.

use super::*;

fn read(variables: &[(&str, &str)]) -> (Settings, Vec<String>) {
    let var =
        |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    let (settings, notes) = Settings::from_environment(var);
    (settings, notes.iter().map(ToString::to_string).collect())
}

#[test]
fn the_defaults_are_horovods() {
    let (settings, notes) = read(&[]);
    assert_eq!(notes, [""; 0]);
    assert_eq!(settings, Settings::default());
    assert_eq!(settings.fusion_threshold, 134_217_728);
    assert_eq!(settings.cycle_time, Duration::from_millis(1));
    assert_eq!(settings.cache_capacity, 1024);
    assert_eq!(settings.peer_timeout, Duration::from_secs(30));
    assert_eq!(settings.stall_warning, Some(Duration::from_secs(60)));
    assert_eq!(settings.stall_shutdown, None);
    assert_eq!(settings.timeline, None);
    assert_eq!(settings.log_level, Level::Warning);
    assert!(settings.thread_affinity.is_empty());
    assert_eq!(
        (settings.gpu_path, settings.nccl_library, settings.num_nccl_streams),
        (GpuPath::Auto, None, 1)
    );
    let switches = [
        settings.disable_group_fusion,
        settings.dynamic_process_sets,
        settings.elastic,
        settings.deterministic,
        settings.timeline_mark_cycles,
        settings.log_hide_time,
    ];
    assert_eq!(switches, [false; 6]);
}

#[test]
fn every_variable_reaches_its_setting() {
    let (settings, notes) = read(&[
        ("HOROVOD_FUSION_THRESHOLD", "0"),
        ("HOROVOD_CYCLE_TIME", "2.5"),
        ("HOROVOD_CACHE_CAPACITY", " 7 "),
        ("HOROVOD_DISABLE_GROUP_FUSION", "yes"),
        ("HOROVOD_DYNAMIC_PROCESS_SETS", "true"),
        ("HOROVOD_ELASTIC", "1"),
        ("RONDE_DETERMINISTIC", "on"),
        ("HOROVOD_LOCAL_SIZE", "2"),
        ("HOROVOD_THREAD_AFFINITY", "4,6"),
        ("HOROVOD_GLOO_IFACE", "eth1"),
        ("RONDE_GPU_PATH", "Device"),
        ("RONDE_NCCL_LIBRARY", "/opt/nccl/libnccl.so.2"),
        ("HOROVOD_NUM_NCCL_STREAMS", "3"),
        ("HOROVOD_GLOO_TIMEOUT_SECONDS", "5"),
        ("HOROVOD_STALL_CHECK_TIME_SECONDS", "10"),
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "20"),
        ("HOROVOD_TIMELINE", "trace-{rank}.json"),
        ("HOROVOD_TIMELINE_MARK_CYCLES", "TRUE"),
        ("HOROVOD_LOG_LEVEL", "DEBUG"),
        ("HOROVOD_LOG_HIDE_TIME", "1"),
    ]);
    assert_eq!(notes, [""; 0]);
    let expected = Settings {
        fusion_threshold: 0,
        cycle_time: Duration::from_micros(2500),
        cache_capacity: 7,
        disable_group_fusion: true,
        dynamic_process_sets: true,
        elastic: true,
        deterministic: true,
        thread_affinity: vec![4, 6],
        interface: Some("eth1".into()),
        gpu_path: GpuPath::Device,
        nccl_library: Some("/opt/nccl/libnccl.so.2".into()),
        num_nccl_streams: 3,
        peer_timeout: Duration::from_secs(5),
        stall_warning: Some(Duration::from_secs(10)),
        stall_shutdown: Some(Duration::from_secs(20)),
        timeline: Some(TimelineTarget::File("trace-{rank}.json".to_owned())),
        timeline_mark_cycles: true,
        log_level: Level::Debug,
        log_hide_time: true,
    };
    assert_eq!(settings, expected);
    assert_eq!(read(&[("HOROVOD_TIMELINE", "DYNAMIC")]).0.timeline, Some(TimelineTarget::Dynamic));
}

#[test]
fn a_value_that_cannot_be_read_is_reported_and_the_default_used() {
    let (settings, notes) = read(&[
        ("HOROVOD_CACHE_CAPACITY", "(None,)"),
        ("HOROVOD_ELASTIC", "perhaps"),
        ("HOROVOD_LOG_LEVEL", "loud"),
        ("HOROVOD_THREAD_AFFINITY", "0-3"),
        ("HOROVOD_GLOO_TIMEOUT_SECONDS", "0"),
        ("HOROVOD_CYCLE_TIME", ""),
        ("RONDE_GPU_PATH", "fast"),
        ("HOROVOD_NUM_NCCL_STREAMS", "0"),
    ]);
    assert_eq!(settings, Settings::default());
    let expected = [
        "HOROVOD_THREAD_AFFINITY=0-3 is not a list of core numbers such as 0,2,4; it is ignored",
        "HOROVOD_CACHE_CAPACITY=(None,) is not a whole number; 1024 is used instead",
        "HOROVOD_ELASTIC=perhaps is neither on (1, true, yes, on) nor off (0, false, no, off); 0 is used instead",
        "RONDE_GPU_PATH=fast is none of auto, device, nccl, host; auto is used instead",
        "HOROVOD_NUM_NCCL_STREAMS=0 is not a whole number of at least 1; 1 is used instead",
        "HOROVOD_GLOO_TIMEOUT_SECONDS=0 is not a positive number of seconds; 30 is used instead",
        "HOROVOD_LOG_LEVEL=loud is none of trace, debug, info, warning, error, fatal; warning is used instead",
    ];
    assert_eq!(notes, expected);
}

#[test]
fn cores_must_suffice_for_the_ranks_of_the_host() {
    let (settings, notes) = read(&[("HOROVOD_LOCAL_SIZE", "2"), ("HOROVOD_THREAD_AFFINITY", "3")]);
    assert!(settings.thread_affinity.is_empty());
    assert_eq!(notes.len(), 1);
    assert!(notes[0].contains("1 core for 2 ranks"), "{notes:?}");
    let (settings, notes) = read(&[("HOROVOD_LOCAL_SIZE", "2"), ("HOROVOD_THREAD_AFFINITY", "3,1,0")]);
    assert_eq!((settings.thread_affinity, notes.len()), (vec![3, 1, 0], 0));
}

#[test]
fn stalls_are_reported_before_they_end_the_job_or_not_at_all() {
    let (settings, notes) = read(&[("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "30")]);
    assert_eq!(settings.stall_shutdown, None);
    assert!(notes[0].starts_with("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=30 is ignored"), "{notes:?}");
    let (settings, notes) =
        read(&[("HOROVOD_STALL_CHECK_TIME_SECONDS", "0"), ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "30")]);
    let only_shutdown = (None, Some(Duration::from_secs(30)));
    assert_eq!(((settings.stall_warning, settings.stall_shutdown), notes.len()), (only_shutdown, 0));
    let (settings, notes) =
        read(&[("HOROVOD_STALL_CHECK_DISABLE", "1"), ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "30")]);
    assert_eq!(((settings.stall_warning, settings.stall_shutdown), notes.len()), ((None, None), 0));
}

#[test]
fn what_cannot_be_had_is_said_once_for_each_reason() {
    let (_, notes) = read(&[
        ("HOROVOD_AUTOTUNE", "1"),
        ("HOROVOD_AUTOTUNE_LOG", "tuning.csv"),
        ("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", "3"),
        ("HOROVOD_CONTROLLER", "mpi"),
        ("HOROVOD_HIERARCHICAL_ALLREDUCE", "1"),
    ]);
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].starts_with("HOROVOD_CONTROLLER has no effect: "), "{notes:?}");
    assert!(notes[1].starts_with("HOROVOD_AUTOTUNE, HOROVOD_AUTOTUNE_LOG have no effect: "), "{notes:?}");
}

#[test]
fn asking_for_what_is_the_case_anyway_is_not_worth_a_word() {
    let (_, notes) = read(&[
        ("HOROVOD_AUTOTUNE", "false"),
        ("HOROVOD_CONTROLLER", "GLOO"),
        ("HOROVOD_CPU_OPERATIONS", "gloo"),
        ("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", "0.80"),
        ("HOROVOD_GPU_OPERATIONS", "NCCL"),
    ]);
    assert_eq!(notes, [""; 0]);
}

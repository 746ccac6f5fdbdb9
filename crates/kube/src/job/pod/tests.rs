//! Pods as they are sent, looked at as JSON.

use super::*;
use crate::job::examples;
use crate::job::{FileItem, Files, Volume};

fn pods(job: &Job) -> Vec<Value> {
    let gang = Gang::new(&job.name, 0, &[("node-1".to_owned(), 5), ("node-3".to_owned(), 1)].into());
    gang.members
        .iter()
        .map(|member| json!(pod(job, &gang, member, &examples::surroundings()).expect("a pod")))
        .collect()
}

/// What a pod runs, as a line.
fn words(pod: &Value) -> String {
    let command = pod.pointer("/spec/containers/0/command").and_then(Value::as_array).expect("a command");
    command.iter().map(|word| word.as_str().expect("a word")).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_chief_launches_over_agents_that_dial_it() {
    let pods = pods(&examples::job("mnist", 6));
    assert_eq!(
        words(&pods[0]),
        "/ronde/bin/ronde run --num-proc 6 --agents 1 --listen 0.0.0.0:4321 --own-slots 1 --own-name mnist-chief \
         --secret-file /run/ronde/secret/secret --start-timeout 600 -- python train.py"
    );
    assert_eq!(
        words(&pods[1]),
        "/ronde/bin/ronde agent --connect mnist-chief-uidmni.default.svc.cluster.local.:4321 \
         --secret-file /run/ronde/secret/secret --slots 5 --name mnist-worker-0 --once --patience 600"
    );
    assert_eq!(pods[1]["spec"]["hostname"], "mnist-worker-0");
    assert_eq!(pods[1]["spec"]["subdomain"], "mnist");
}

#[test]
fn over_ssh_every_pod_has_one_rank_and_the_command_is_the_chiefs() {
    let mut job = examples::job("mnist", 6);
    job.spec.ssh = true;
    job.spec.command = ["mpirun", "sh", "-c", "echo $(HOME)"].map(str::to_owned).to_vec();
    let pods = pods(&job);
    assert_eq!(
        words(&pods[0]),
        "/ronde/bin/ronde run --num-proc 2 --agents 1 --listen 0.0.0.0:4321 --own-slots 1 --own-name mnist-chief \
         --secret-file /run/ronde/secret/secret --start-timeout 600 --led --no-prefix --quiet -- /ronde/bin/ronde over-ssh \
         --keys /run/ronde/secret --folder /ronde/ssh --hosts mnist-chief:1,mnist-worker-0:5 \
         --domain mnist.default.svc.cluster.local. --patience 600 -- mpirun sh -c echo $$(HOME)"
    );
    assert!(words(&pods[1]).contains(" --slots 1 --name mnist-worker-0 --once "), "{}", words(&pods[1]));
    let gpus = |pod: &Value| pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"].clone();
    assert_eq!((gpus(&pods[0]), gpus(&pods[1])), (json!("1"), json!("5")));
}

#[test]
fn a_job_on_one_node_needs_no_agents() {
    let mut job = examples::job("mnist", 4);
    job.spec.command = vec!["sh".to_owned(), "-c".to_owned(), "echo $(HOME) $HOME $$".to_owned()];
    let gang = Gang::new("mnist", 0, &[("node-1".to_owned(), 4)].into());
    let pod = json!(pod(&job, &gang, &gang.members[0], &examples::surroundings()).expect("a pod"));
    let command = &pod["spec"]["containers"][0]["command"];
    assert_eq!(
        *command,
        json!(["/ronde/bin/ronde", "run", "--num-proc", "4", "--", "sh", "-c", "echo $$(HOME) $$HOME $$$$"])
    );
}

#[test]
fn nothing_is_brought_to_an_image_that_has_it_unless_files_or_ssh_need_it() {
    let mut job = examples::job("mnist", 6);
    job.spec.image_has_ronde = true;
    job.spec.env =
        serde_json::from_value(json!([{"name": "PYTHONPATH", "value": "/mine"}])).expect("variables");
    let variable = |pod: &Value, name: &str| {
        let all = pod["spec"]["containers"][0]["env"].as_array().expect("variables");
        all.iter().filter(|one| one["name"] == name).map(|one| one["value"].clone()).collect::<Vec<_>>()
    };
    for pod in pods(&job) {
        assert_eq!(pod["spec"].get("initContainers"), None);
        assert!(words(&pod).starts_with("ronde "), "{}", words(&pod));
        assert_eq!(variable(&pod, "PYTHONPATH"), [json!("/mine")]);
        assert_eq!(variable(&pod, "RONDE_PYTHON_PATH"), [] as [Value; 0]);
        assert_eq!(variable(&pod, "HOME"), [json!("/ronde")]);
    }
    job.spec.files = Some(Files { config_map: "files".to_owned(), items: Vec::new() });
    let with_files = pods(&job);
    (job.spec.files, job.spec.ssh) = (None, true);
    for pod in with_files.iter().chain(&pods(&job)) {
        assert_eq!(pod["spec"]["initContainers"].as_array().map(Vec::len), Some(1));
        assert!(words(pod).starts_with("/ronde/bin/ronde "), "{}", words(pod));
        assert_eq!(variable(pod, "PYTHONPATH"), [json!("/mine")]);
        assert_eq!(variable(pod, "RONDE_PYTHON_PATH"), [json!("/ronde/lib/python3/site-packages")]);
    }
}

#[test]
fn variables_of_a_template_stay_and_of_two_of_a_name_the_job_s_counts_alone() {
    let mut job = examples::job("mnist", 6);
    let from_node = json!({"fieldRef": {"fieldPath": "spec.nodeName"}});
    job.spec.template = Some(json!({"spec": {"containers": [{"name": "mine", "env": [
        {"name": "HOME", "value": "/home/me"},
        {"name": "PYTHONPATH", "valueFrom": from_node},
        {"name": "A", "valueFrom": from_node},
    ]}]}}));
    job.spec.env = serde_json::from_value(json!([{"name": "A", "value": "b"}])).expect("variables");
    let pod = &pods(&job)[0];
    let variables = pod["spec"]["containers"][0]["env"].as_array().expect("variables");
    let named = |name: &str| variables.iter().filter(|one| one["name"] == name).collect::<Vec<_>>();
    assert_eq!(named("HOME"), [&json!({"name": "HOME", "value": "/home/me"})]);
    assert_eq!(named("PYTHONPATH"), [&json!({"name": "PYTHONPATH", "valueFrom": from_node})]);
    assert_eq!(named("A"), [&json!({"name": "A", "value": "b"})]);
}

#[test]
fn a_deadline_is_never_longer_than_kubernetes_counts() {
    let mut job = examples::job("mnist", 6);
    (job.spec.deadline_seconds, job.spec.start_deadline_seconds) = (Some(2_147_483_647), 600);
    assert_eq!(pods(&job)[0]["spec"]["activeDeadlineSeconds"], 2_147_483_647);
}

#[test]
fn pods_are_gated_pinned_owned_and_hold_their_share() {
    let mut job = examples::job("mnist", 6);
    job.spec.cpu_per_gpu = "4".parse().ok();
    job.spec.memory_per_gpu = "1Gi".parse().ok();
    let pod = &pods(&job)[1];
    let spec = &pod["spec"];
    assert_eq!(spec["schedulingGates"], json!([{"name": "ronde.dev/claim"}]));
    let pin = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0";
    assert_eq!(spec.pointer(pin).expect("a pin")["values"], json!(["node-1"]));
    assert!(spec.get("nodeName").is_none());
    assert_eq!(spec["restartPolicy"], "Never");
    let expected = json!({
        "requests": {"nvidia.com/gpu": "5", "cpu": "20", "memory": "5368709120"},
        "limits": {"nvidia.com/gpu": "5", "memory": "5368709120"},
    });
    assert_eq!(spec["containers"][0]["resources"], expected);
    assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], "uid-mnist");
    let claim: Value =
        serde_json::from_str(pod["metadata"]["annotations"]["ronde.dev/claim"].as_str().expect("a claim"))
            .expect("JSON");
    assert_eq!(claim, json!({"resource": "nvidia.com/gpu", "nodes": {"node-1": 5, "node-3": 1}}));
    assert_eq!(spec["tolerations"], json!([{"key": "nvidia.com/gpu", "operator": "Exists"}]));
}

/// What the restricted level of pod security asks for.
#[test]
fn pods_fit_into_a_restricted_namespace() {
    for pod in pods(&examples::job("mnist", 6)) {
        let spec = &pod["spec"];
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        assert_eq!(spec["securityContext"]["runAsUser"], 1000);
        assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        for container in [&spec["initContainers"][0], &spec["containers"][0]] {
            assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
            assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
        }
        for volume in spec["volumes"].as_array().expect("volumes") {
            let kinds: Vec<_> =
                volume.as_object().expect("an object").keys().filter(|key| *key != "name").collect();
            assert!(
                ["emptyDir", "secret", "configMap", "persistentVolumeClaim"].contains(&kinds[0].as_str())
            );
        }
        assert_eq!(spec["automountServiceAccountToken"], false);
    }
}

#[test]
fn volumes_files_and_variables_arrive() {
    let mut job = examples::job("mnist", 6);
    job.spec.volumes.push(Volume { claim: "data".to_owned(), path: "/data".to_owned(), read_only: true });
    let item = FileItem { key: "file-0".to_owned(), path: "train.py".to_owned(), executable: false };
    job.spec.files = Some(Files { config_map: "mnist-files".to_owned(), items: vec![item] });
    job.spec.env = serde_json::from_value(
        json!([{"name": "PYTHONPATH", "value": "/mine"}, {"name": "A", "value": "b"}]),
    )
    .expect("variables");
    job.spec.read_only_root = true;
    let pod = &pods(&job)[0];
    let train = &pod["spec"]["containers"][0];
    assert_eq!(train["workingDir"], "/ronde/work");
    let variables: Vec<String> = train["env"]
        .as_array()
        .expect("variables")
        .iter()
        .filter_map(|one| Some(format!("{}={}", one["name"].as_str()?, one["value"].as_str()?)))
        .collect();
    assert_eq!(
        variables,
        ["RONDE_PYTHON_PATH=/ronde/lib/python3/site-packages", "HOME=/ronde/home", "PYTHONPATH=/mine", "A=b"]
    );
    let mounts: Vec<&str> = train["volumeMounts"]
        .as_array()
        .expect("mounts")
        .iter()
        .filter_map(|one| one["mountPath"].as_str())
        .collect();
    assert_eq!(mounts, ["/ronde", "/run/ronde/secret", "/dev/shm", "/tmp", "/data"]);
    let deliver = &pod["spec"]["initContainers"][0];
    assert_eq!(
        deliver["command"],
        json!(["ronde", "kube", "deliver", "/ronde", "--files", "/run/ronde/files"])
    );
}

#[test]
fn a_template_lies_under_what_is_made_here() {
    let mut job = examples::job("mnist", 6);
    job.spec.queue = Some("team".to_owned());
    job.spec.template = Some(json!({
        "metadata": {"labels": {"team": "x"}, "name": "theirs"},
        "spec": {
            "containers": [
                {
                    "name": "pytorch", "image": "other", "env": [{"name": "A", "value": "1"}], "lifecycle": {},
                    "command": ["python", "other.py"], "args": ["--epochs", "3"],
                },
                {"name": "logger", "image": "log:1"},
            ],
            "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}],
            "hostIPC": true,
        },
    }));
    let pod = &pods(&job)[0];
    assert_eq!(pod["metadata"]["name"], "mnist-chief");
    assert_eq!(pod["metadata"]["labels"]["team"], "x");
    assert_eq!(pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"], "team");
    let names: Vec<&str> = pod["spec"]["containers"]
        .as_array()
        .expect("containers")
        .iter()
        .filter_map(|one| one["name"].as_str())
        .collect();
    assert_eq!(names, ["train", "logger"]);
    assert_eq!(pod["spec"]["containers"][0]["image"], "train:1");
    assert!(words(pod).starts_with("/ronde/bin/ronde run ") && words(pod).ends_with(" -- python train.py"));
    assert_eq!(pod["spec"]["containers"][0]["args"], json!([]));
    assert_eq!(pod["spec"]["hostIPC"], true);
    assert_eq!(pod["spec"]["schedulingGates"].as_array().map(Vec::len), Some(2));
    job.spec.template = Some(json!({"spec": {"hostIPC": "yes"}}));
    let gang = Gang::new("mnist", 0, &[("n".to_owned(), 1)].into());
    let error =
        super::pod(&job, &gang, &gang.members[0], &examples::surroundings()).expect_err("no template");
    assert!(error.contains("template"), "{error}");
}

#[test]
fn pods_and_their_ranks_have_as_long_to_end_as_the_template_says() {
    let mut job = examples::job("mnist", 6);
    let grace = |job: &Job| {
        pods(job).iter().map(|pod| pod["spec"]["terminationGracePeriodSeconds"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(grace(&job), [json!(30), json!(30)]);
    assert!(!words(&pods(&job)[0]).contains("--grace"));
    for (seconds, ranks) in [(600, 595), (7, 4), (2, 2)] {
        job.spec.template = Some(json!({"spec": {"terminationGracePeriodSeconds": seconds}}));
        assert_eq!(grace(&job), [json!(seconds), json!(seconds)]);
        let told = format!(" run --num-proc 6 --grace {ranks} --agents 1 ");
        assert!(words(&pods(&job)[0]).contains(&told), "{}", words(&pods(&job)[0]));
    }
}

#[test]
fn every_alternative_of_a_template_is_pinned_too() {
    let mut job = examples::job("mnist", 6);
    let zone = json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]});
    let named = json!({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-9"]}]});
    let terms = json!({"nodeSelectorTerms": [zone, named]});
    job.spec.template = Some(json!({"spec": {"affinity": {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms},
        "podAntiAffinity": {},
    }}}));
    let pod = &pods(&job)[1];
    let terms = pod.pointer(TERMS).and_then(Value::as_array).expect("terms");
    assert_eq!(terms.len(), 2, "{terms:?}");
    for term in terms {
        let fields = term["matchFields"].as_array().expect("a pin");
        assert_eq!(fields.last().expect("a pin")["values"], json!(["node-1"]));
    }
    assert_eq!(terms[0]["matchExpressions"], zone["matchExpressions"]);
    assert!(pod["spec"]["affinity"].get("podAntiAffinity").is_some());
    let read: Pod = serde_json::from_value(pod.clone()).expect("a pod");
    let own = crate::cluster::OwnPod::read(&read, read.spec.as_ref().expect("a spec")).expect("ours");
    assert_eq!(own.pinned, "node-1");
}

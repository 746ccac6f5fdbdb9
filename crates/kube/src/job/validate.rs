//! What is wrong with a job, before anything is made of it.

use super::spec::PULL_POLICIES;
use super::{RondeJobSpec, names};

/// Everything that is wrong with a job, in words; nothing if it can be tried.
pub fn validate(name: &str, spec: &RondeJobSpec) -> Result<(), Vec<String>> {
    let mut problems = Vec::new();
    let mut check = |is_well: bool, problem: String| {
        if !is_well {
            problems.push(problem);
        }
    };
    for problem in &spec.unreadable {
        check(false, problem.clone());
    }
    if let Err(problem) = names::check(name) {
        check(false, problem);
    }
    check(!spec.image.trim().is_empty(), "image: it is not said which image the ranks run in".to_owned());
    check(!spec.command.is_empty(), "command: it is not said what the ranks run".to_owned());
    let resource = &spec.resource;
    check(
        resource.split_once('/').is_some_and(|(domain, kind)| domain.contains('.') && !kind.is_empty()),
        format!(
            "resource: {resource:?} is no device; write nvidia.com/gpu, or what `kubectl describe node` shows"
        ),
    );
    check(spec.max_gpus_per_node != Some(0), "maxGpusPerNode: 0 leaves no node; write 1 or more".to_owned());
    check(spec.deadline_seconds != Some(0), "deadlineSeconds: 0 leaves no time".to_owned());
    check(spec.start_deadline_seconds > 0, "startDeadlineSeconds: 0 leaves no time".to_owned());
    for volume in &spec.volumes {
        check(
            volume.path.starts_with('/') && volume.path != "/" && !is_ours(&volume.path),
            format!("volumes: {:?} is no place for a volume; write a path such as /data", volume.path),
        );
        check(
            !volume.claim.is_empty(),
            format!("volumes: it is not said what is mounted at {}", volume.path),
        );
    }
    for item in spec.files.iter().flat_map(|files| &files.items) {
        let leaves =
            item.path.starts_with('/') || item.path.split('/').any(|part| part == ".." || part.is_empty());
        check(!leaves, format!("files: {:?} is not a path inside the working folder", item.path));
    }
    if let Some(policy) = &spec.image_pull_policy {
        let known = PULL_POLICIES.contains(&policy.as_str());
        check(known, format!("imagePullPolicy: {policy:?} is none of Always, IfNotPresent and Never"));
    }
    if let Some(template) = &spec.template {
        let described = template.get("spec").is_some() || template.get("metadata").is_some();
        check(
            described,
            "template: it has neither a spec nor metadata; a whole pod template is meant".to_owned(),
        );
        for key in ["schedulingGates", "nodeName", "restartPolicy", "hostname", "subdomain"] {
            // Somebody else's gates pass through.
            let is_there = key != "schedulingGates" && template.pointer(&format!("/spec/{key}")).is_some();
            check(!is_there, format!("template: {key} is set by the manager; leave it out"));
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Whether a path is, or is in, the folder that program and package are brought to.
fn is_ours(path: &str) -> bool {
    path.strip_prefix("/ronde").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::job::{Volume, examples};

    #[test]
    fn a_plain_job_is_well_and_every_mistake_is_named() {
        assert_eq!(validate("mnist", &examples::spec(6)), Ok(()));
        type Spoil = fn(&mut RondeJobSpec);
        let cases: [(Spoil, &str); 8] = [
            (|spec| spec.image = " ".to_owned(), "image:"),
            (|spec| spec.command.clear(), "command:"),
            (|spec| spec.resource = "gpu".to_owned(), "nvidia.com/gpu"),
            (|spec| spec.max_gpus_per_node = Some(0), "maxGpusPerNode"),
            (
                |spec| {
                    let volume =
                        Volume { claim: "data".to_owned(), path: "data".to_owned(), read_only: false };
                    spec.volumes.push(volume);
                },
                "/data",
            ),
            (|spec| spec.image_pull_policy = Some("Sometimes".to_owned()), "IfNotPresent"),
            (|spec| spec.template = Some(json!({"containers": []})), "whole pod template"),
            (|spec| spec.template = Some(json!({"spec": {"nodeName": "a"}})), "nodeName"),
        ];
        for (spoil, words) in cases {
            let mut spec = examples::spec(6);
            spoil(&mut spec);
            let problems = validate("mnist", &spec).expect_err(words).join("\n");
            assert!(problems.contains(words), "{problems}");
        }
        assert!(validate("Mnist", &examples::spec(6)).is_err());
        assert!(is_ours("/ronde") && is_ours("/ronde/data") && !is_ours("/ronde-data"));
    }
}

//! What `ronde kube install` puts into a cluster: the definition of `RondeJob`, the controller, and exactly the rights
//! that it needs.

use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::job::RondeJob;

/// What the controller and all that belongs to it are called.
pub const MANAGER: &str = "ronde-manager";

/// All objects, in the order in which they are made.
pub fn manifests(namespace: &str, image: &str, cluster_domain: &str) -> Vec<Value> {
    let labels = json!({"app.kubernetes.io/name": MANAGER});
    let named = json!({"name": MANAGER, "labels": labels});
    let placed = json!({"name": MANAGER, "namespace": namespace, "labels": labels});
    let subject = json!([{"kind": "ServiceAccount", "name": MANAGER, "namespace": namespace}]);
    vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": {
            "app.kubernetes.io/name": MANAGER, "pod-security.kubernetes.io/enforce": "restricted",
        }}}),
        json!(RondeJob::crd()),
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": placed}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": named, "rules": rules()}),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": named,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": MANAGER},
            "subjects": subject,
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": placed,
            "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": placed,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": MANAGER},
            "subjects": subject,
        }),
        deployment(&placed, image, cluster_domain),
    ]
}

/// What finds the controller's pods.
pub(crate) fn selector() -> String {
    format!("app.kubernetes.io/name={MANAGER}")
}

/// The rights of the controller, in every namespace that has jobs. Each is needed: tests/kubernetes/test_rights.py takes
/// them away one by one.
fn rules() -> Value {
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    json!([
        rule("", &["nodes"], &["list", "watch"]),
        rule("", &["pods"], &["list", "watch", "create", "get", "patch", "delete"]),
        rule("", &["services", "configmaps"], &["create", "get", "delete"]),
        rule("", &["secrets"], &["create", "delete"]),
        rule("", &["events"], &["create"]),
        rule("ronde.dev", &["rondejobs"], &["list", "watch"]),
        rule("ronde.dev", &["rondejobs/status"], &["patch"]),
    ])
}

fn deployment(metadata: &Value, image: &str, cluster_domain: &str) -> Value {
    let labels = &metadata["labels"];
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": 8080}, "periodSeconds": 10});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": MANAGER,
                    "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
                    "containers": [{
                        "name": "manager",
                        "image": image,
                        "command": ["ronde", "kube", "manager"],
                        "args": ["--manager-image", image, "--cluster-domain", cluster_domain],
                        "env": [field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace")],
                        "ports": [{"name": "http", "containerPort": 8080}],
                        "livenessProbe": probe("/healthz"),
                        "readinessProbe": probe("/readyz"),
                        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
                        "securityContext": {
                            "allowPrivilegeEscalation": false,
                            "readOnlyRootFilesystem": true,
                            "capabilities": {"drop": ["ALL"]},
                        },
                    }],
                },
            },
        },
    })
}

/// Manifests as YAML that people can read and `kubectl apply -f -` takes.
pub fn yaml(objects: &[Value]) -> String {
    let mut text = String::new();
    for object in objects {
        text.push_str("---\n");
        block(object, 0, &mut text);
    }
    text
}

/// Writes a value as a block: every entry on a line of its own.
fn block(value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                text.push_str(&format!("{indent}{}:", plain(key)));
                nested(value, depth + 1, text);
            }
        }
        Value::Array(items) => {
            for item in items {
                let mut inner = String::new();
                match item {
                    Value::Object(entries) if !entries.is_empty() => block(item, depth + 1, &mut inner),
                    other => inner = format!("{indent}  {}\n", scalar(other)),
                }
                // The dash stands where the first line's indentation was.
                text.push_str(&format!("{indent}- {}", &inner[indent.len() + 2..]));
            }
        }
        other => text.push_str(&format!("{indent}{}\n", scalar(other))),
    }
}

fn nested(value: &Value, depth: usize, text: &mut String) {
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            text.push('\n');
            block(value, depth, text);
        }
        Value::Array(items) if !items.is_empty() => {
            text.push('\n');
            block(value, depth, text);
        }
        other => text.push_str(&format!(" {}\n", scalar(other))),
    }
}

/// What fits on a line. Strings that could be taken for something else are quoted as JSON, which YAML includes.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => plain(text),
        other => other.to_string(),
    }
}

fn plain(text: &str) -> String {
    let starts = text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '/');
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "/._-".contains(letter);
    let is_word = matches!(
        text.to_ascii_lowercase().as_str(),
        "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n"
    );
    if starts && text.chars().all(fits) && !is_word {
        text.to_owned()
    } else {
        Value::String(text.to_owned()).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_can_be_applied_and_says_what_people_look_for() {
        let crd = json!(RondeJob::crd());
        // `kubectl apply` keeps a copy in an annotation, which may have this many bytes.
        assert!(crd.to_string().len() < 262_144, "{} bytes", crd.to_string().len());
        let version = &crd["spec"]["versions"][0];
        let columns: Vec<&str> = version["additionalPrinterColumns"]
            .as_array()
            .expect("columns")
            .iter()
            .filter_map(|column| column["name"].as_str())
            .collect();
        assert_eq!(columns, ["GPUs", "Phase", "Nodes", "Reason", "Age"]);
        let properties = &version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        assert_eq!(properties["gpus"]["x-kubernetes-int-or-string"], true);
        assert_eq!(properties["template"]["x-kubernetes-preserve-unknown-fields"], true);
    }

    #[test]
    fn secrets_cannot_be_read_and_nothing_is_held_with_a_star() {
        let rules = rules();
        let all = rules.to_string();
        assert!(!all.contains('*'), "{all}");
        let secrets = rules.as_array().expect("rules").iter().find(|rule| rule["resources"][0] == "secrets");
        assert_eq!(secrets.expect("a rule")["verbs"], json!(["create", "delete"]));
    }

    #[test]
    fn yaml_is_what_one_would_write() {
        let object = json!({"a": "b", "list": [{"x": 1, "xs": ["true", "z z"]}, "s"], "none": {}, "deep": {"k": null}});
        let expected = "---\na: b\ndeep:\n  k: null\nlist:\n  - x: 1\n    xs:\n      - \"true\"\n      - \"z z\"\n  - s\nnone: {}\n";
        assert_eq!(yaml(&[object]), expected);
    }
}

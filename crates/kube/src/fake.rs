//! An API server in memory, for tests of what speaks to one: it keeps objects, hands out uids, and says no where a test
//! wants it to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::Notify;

/// What is answered to a request: a method, a part of its path, and the answer.
type Rule = (Method, &'static str, u16, &'static str, &'static str);

/// The server. Objects are kept by their path.
#[derive(Clone, Default)]
pub(crate) struct Fake(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Value>,
    rules: Vec<Rule>,
    held: Vec<&'static str>,
    released: Arc<Notify>,
    asked: Vec<String>,
    written: u64,
}

impl Fake {
    /// A client of it.
    pub(crate) fn client(&self) -> Client {
        let fake = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let fake = fake.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.expect("a body");
                let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let (code, answer) = fake.state().answer(&head.method, head.uri.path(), &body);
                fake.wait(head.uri.path()).await;
                let bytes = serde_json::to_vec(&answer).expect("JSON");
                let response = Response::builder().status(code).body(Body::from(bytes));
                Ok::<_, std::convert::Infallible>(response.expect("a response"))
            }
        });
        Client::new(service, "default")
    }

    /// Says no to requests of this method whose path has this in it, from now on.
    pub(crate) fn refuse(&self, rule: Rule) {
        self.state().rules.push(rule);
    }

    /// Leaves requests without an answer whose path has this in it, from now on.
    pub(crate) fn hold(&self, part: &'static str) {
        self.state().held.push(part);
    }

    async fn wait(&self, path: &str) {
        let released = {
            let state = self.state();
            if !state.held.iter().any(|part| path.contains(part)) {
                return;
            }
            Arc::clone(&state.released).notified_owned()
        };
        released.await;
    }

    /// Takes all requests again, and answers those that were held.
    pub(crate) fn relent(&self) {
        let mut state = self.state();
        state.rules.clear();
        state.held.clear();
        state.released.notify_waiters();
    }

    /// Puts an object where a request would find it.
    pub(crate) fn put(&self, path: &str, object: Value) {
        self.state().keep(path, object);
    }

    /// The names of all objects of a kind.
    pub(crate) fn names(&self, kind: &str) -> Vec<String> {
        let part = format!("/{kind}/");
        let state = self.state();
        let paths = state.objects.keys().filter(|path| path.contains(&part));
        paths.filter_map(|path| Some(path.rsplit_once('/')?.1.to_owned())).collect()
    }

    /// How many requests were made of which this is a part: `POST /api/v1/namespaces/default/pods`.
    pub(crate) fn asked(&self, part: &str) -> usize {
        self.state().asked.iter().filter(|line| line.contains(part)).count()
    }

    /// All requests, in their order.
    pub(crate) fn all_asked(&self) -> Vec<String> {
        self.state().asked.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn keep(&mut self, path: &str, mut object: Value) -> Value {
        self.written += 1;
        let about = object["metadata"].as_object_mut().expect("metadata");
        about.insert("resourceVersion".to_owned(), json!(self.written.to_string()));
        about.entry("uid").or_insert(json!(format!("uid-{}", self.written)));
        about.entry("namespace").or_insert(json!("default"));
        about.entry("creationTimestamp").or_insert(json!(k8s_openapi::jiff::Timestamp::now()));
        self.objects.insert(path.to_owned(), object.clone());
        object
    }

    fn answer(&mut self, method: &Method, path: &str, body: &Value) -> (u16, Value) {
        self.asked.push(format!("{method} {path}"));
        let rule = self.rules.iter().find(|rule| rule.0 == method && path.contains(rule.1));
        if let Some((_, _, code, reason, message)) = rule {
            return status(*code, reason, message);
        }
        match method.as_str() {
            "POST" => {
                let name = body["metadata"]["name"].as_str().expect("a name");
                let path = format!("{path}/{name}");
                match self.objects.contains_key(&path) {
                    true => status(409, "AlreadyExists", "it is there"),
                    false => (201, self.keep(&path, body.clone())),
                }
            }
            "GET" if path == "/api/v1/pods" => {
                let pods: Vec<&Value> = self
                    .objects
                    .iter()
                    .filter(|(path, _)| path.contains("/pods/"))
                    .map(|(_, pod)| pod)
                    .collect();
                let about = json!({"resourceVersion": self.written.to_string()});
                (200, json!({"kind": "PodList", "apiVersion": "v1", "metadata": about, "items": pods}))
            }
            _ => {
                let Some(found) = self.objects.get(path).cloned() else {
                    return status(404, "NotFound", "it is not there");
                };
                match method.as_str() {
                    "GET" => (200, found),
                    "PATCH" => (200, self.keep(path, patched(found, body))),
                    "DELETE" => {
                        let wanted = &body["preconditions"]["uid"];
                        if wanted.is_string() && *wanted != found["metadata"]["uid"] {
                            return status(409, "Conflict", "Precondition failed: UID in precondition");
                        }
                        self.objects.remove(path);
                        (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
                    }
                    other => panic!("nobody asks for {other} {path}"),
                }
            }
        }
    }
}

/// Of patches only what is made use of: notes, a deadline, and our gate.
fn patched(mut object: Value, patch: &Value) -> Value {
    for (name, value) in patch["metadata"]["annotations"].as_object().into_iter().flatten() {
        object["metadata"]["annotations"][name] = value.clone();
    }
    if let Some(limit) = patch["spec"].get("activeDeadlineSeconds") {
        object["spec"]["activeDeadlineSeconds"] = limit.clone();
    }
    if patch["spec"].get("schedulingGates").is_some() {
        object["spec"]["schedulingGates"] = json!([]);
    }
    object
}

fn status(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message,
    });
    (code, body)
}

//! The way to the cluster: from a kubeconfig, or from inside. What is answered on it is counted, and tells the time.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Response;
use k8s_openapi::jiff::Timestamp;
use kube::client::{ClientBuilder, DynBody};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tower::util::MapResponseLayer;

use crate::Error;
use crate::clock::Clock;
use crate::error::chain;

/// How long the cluster may take to answer at all.
const ANSWER: Duration = Duration::from_secs(20);

/// Which cluster, and where in it.
#[derive(Clone, Debug, Default)]
pub struct Which {
    /// The context of the kubeconfig; its current one if not given.
    pub context: Option<String>,
    /// The namespace; the context's if not given.
    pub namespace: Option<String>,
}

/// A cluster that has answered.
#[derive(Clone)]
pub struct Connection {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) url: String,
    pub(crate) answers: Arc<Answers>,
    /// What time it is there.
    pub(crate) clock: Clock,
}

/// How many answers the API server has given, by their status codes.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<BTreeMap<u16, u64>>);

impl Answers {
    pub(crate) fn count(&self, code: u16) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(code).or_default() += 1;
    }

    pub(crate) fn counts(&self) -> BTreeMap<u16, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Connects, and makes sure that somebody answers.
pub async fn connect(which: &Which) -> Result<Connection, Error> {
    let mut config = match Kubeconfig::read() {
        Ok(kubeconfig) => {
            let options =
                KubeConfigOptions { context: which.context.clone(), ..KubeConfigOptions::default() };
            Config::from_custom_kubeconfig(kubeconfig, &options)
                .await
                .map_err(|error| Error::NoCluster { problem: chain(&error), tried: kubeconfig_path() })?
        }
        Err(error) => match Config::incluster() {
            Ok(config) if which.context.is_none() => config,
            _ => return Err(Error::NoCluster { problem: chain(&error), tried: kubeconfig_path() }),
        },
    };
    config.connect_timeout = Some(Duration::from_secs(10));
    let namespace = which.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
    let url = config.cluster_url.to_string();
    let answers = Arc::new(Answers::default());
    let counter = Arc::clone(&answers);
    let clock = Clock::default();
    let listener = clock.clone();
    let listening = MapResponseLayer::new(move |response: Response<Box<DynBody>>| {
        counter.count(response.status().as_u16());
        listener.hear(response.headers(), Timestamp::now());
        response
    });
    let client = ClientBuilder::try_from(config)
        .map_err(|error| Error::NoCluster { problem: chain(&error), tried: kubeconfig_path() })?
        .with_layer(&listening)
        .build();
    let answer = match tokio::time::timeout(ANSWER, client.apiserver_version()).await {
        Ok(answer) => answer.map_err(|error| Error::met("ask for the cluster's version", error)),
        Err(_) => {
            let problem = format!("nothing was heard for {} s", ANSWER.as_secs());
            return Err(Error::Unreachable { url, problem });
        }
    };
    match answer {
        // A server that answers, if only to say no.
        Ok(_) | Err(Error::Forbidden { .. }) => Ok(Connection { client, namespace, url, answers, clock }),
        Err(Error::Passing { message, .. }) => Err(Error::Unreachable { url, problem: message }),
        Err(other) => Err(other),
    }
}

impl Connection {
    /// The namespace that was asked for, or the context's.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// What time it is in the cluster, by its answers.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// Where the kubeconfig is looked for.
fn kubeconfig_path() -> String {
    match env::var_os("KUBECONFIG").filter(|value| !value.is_empty()) {
        Some(path) => path.to_string_lossy().into_owned(),
        None => {
            let home = env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
            home.join(".kube/config").display().to_string()
        }
    }
}

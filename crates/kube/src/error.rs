//! What can go wrong with a cluster, in words, with what to do about it.

use std::path::PathBuf;

use kube::core::Status;
use kube::runtime::watcher;

use crate::cluster::Ledger;
use crate::job::FilesError;

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing says which cluster is meant.
    #[error("no cluster is known here: {problem}")]
    NoCluster {
        /// What was found, or not.
        problem: String,
        /// The file that would say it.
        tried: String,
    },
    /// The cluster does not answer.
    #[error("the cluster at {url} does not answer: {problem}")]
    Unreachable {
        /// Where it should be.
        url: String,
        /// What happened.
        problem: String,
    },
    /// It does not know who we are.
    #[error("the cluster does not accept who we are: {message}")]
    Unauthorized {
        /// In its own words.
        message: String,
    },
    /// A right is missing.
    #[error("not allowed to {doing}: {message}")]
    Forbidden {
        /// What was tried.
        doing: String,
        /// In the server's words, which name the right.
        message: String,
    },
    /// A quota is used up.
    #[error("a quota does not allow to {doing}: {message}")]
    Quota {
        /// What was tried.
        doing: String,
        /// In the server's words.
        message: String,
    },
    /// The server does not take what was sent, and will not.
    #[error("the cluster refuses to {doing}: {message}")]
    Refused {
        /// What was tried.
        doing: String,
        /// In the server's words.
        message: String,
    },
    /// What it is about is gone.
    #[error("cannot {doing}: it is not there any more")]
    Gone {
        /// What was tried.
        doing: String,
    },
    /// Somebody has deleted the object that a job belongs to, and so the job.
    #[error("job {name} was deleted")]
    Deleted {
        /// The job.
        name: String,
    },
    /// It is there already.
    #[error("cannot {doing}: there is one already")]
    Exists {
        /// What was tried.
        doing: String,
    },
    /// Somebody else's object has a name that the job needs.
    #[error(
        "the {kind} {name} in {namespace} is not this job's but {whose}; give the job another name, \
         or delete it if nobody needs it (kubectl delete {kind} {name} -n {namespace})"
    )]
    Taken {
        /// What it is.
        kind: String,
        /// Its name.
        name: String,
        /// Its namespace.
        namespace: String,
        /// Whose it is.
        whose: String,
    },
    /// The namespace is not there.
    #[error("there is no namespace {namespace}")]
    NoNamespace {
        /// Its name.
        namespace: String,
    },
    /// Something that may go better another time.
    #[error("cannot {doing} at the moment: {message}")]
    Passing {
        /// What was tried.
        doing: String,
        /// What happened.
        message: String,
    },
    /// Pods that were told to end have not.
    #[error("{whose} have not ended: {pods}")]
    Lingering {
        /// Whose pods.
        whose: String,
        /// The first few of them.
        pods: String,
    },
    /// The controller is not where it is looked for.
    #[error("the controller is in the namespace {namespace}, and there can be only one in a cluster")]
    Elsewhere {
        /// Where it is.
        namespace: String,
    },
    /// The definition of `RondeJob` is not in the cluster.
    #[error("the cluster does not know RondeJobs")]
    NotInstalled,
    /// Another job has the name.
    #[error("there is a job {name} in {namespace} already, and it is not the same")]
    NameTaken {
        /// The name.
        name: String,
        /// The namespace.
        namespace: String,
        /// How to delete it.
        delete: String,
    },
    /// The job makes no sense.
    #[error("{}", .0.join("\nerror: "))]
    Invalid(Vec<String>),
    /// The cluster can never give what is asked for.
    #[error("{0}")]
    Never(String),
    /// Files that were to be shipped.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// A file here.
    #[error("cannot {doing} {}: {problem}", path.display())]
    File {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What happened.
        problem: String,
    },
    /// The operating system.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// What happened.
        source: std::io::Error,
    },
}

impl Error {
    /// What a request met with.
    pub(crate) fn met(doing: &str, error: kube::Error) -> Error {
        let doing = doing.to_owned();
        match error {
            kube::Error::Api(status) => Error::answered(doing, &status),
            kube::Error::Auth(problem) => Error::Unauthorized { message: problem.to_string() },
            other => Error::Passing { doing, message: chain(&other) },
        }
    }

    fn answered(doing: String, status: &Status) -> Error {
        let message = status.message.clone();
        match status.code {
            401 => Error::Unauthorized { message },
            403 if message.contains("exceeded quota") => Error::Quota { doing, message },
            // The right that lacks is in the message: User "anna" cannot create resource "pods" … Those who admit objects
            // use other words.
            403 if message.contains("User \"") && message.contains(" cannot ") => {
                Error::Forbidden { doing, message }
            }
            400 | 403 | 405 | 413 | 422 => Error::Refused { doing, message },
            404 | 410 => Error::Gone { doing },
            // Another object has taken the name of the one that was meant.
            409 if message.contains("Precondition failed") => Error::Gone { doing },
            409 if status.reason == "AlreadyExists" => Error::Exists { doing },
            _ => Error::Passing { doing, message },
        }
    }

    /// Whether trying again may help.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Error::Passing { .. })
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Error::NoCluster { tried, .. } => {
                format!("name the file that knows it: export KUBECONFIG=FILE, or put it at {tried}")
            }
            Error::Unreachable { .. } => "is it up, and does `kubectl get nodes` work from here?".to_owned(),
            Error::Unauthorized { .. } => "log in again; `kubectl auth whoami` shows who you are to it".to_owned(),
            Error::Forbidden { .. } => {
                "`ronde kube install --print` shows the rights that a manager needs, for whoever may give them".to_owned()
            }
            Error::NoNamespace { namespace } => format!("kubectl create namespace {namespace}"),
            Error::Lingering { .. } => {
                "are their nodes up? Once they are gone, the same command goes on from here".to_owned()
            }
            Error::NotInstalled => "ronde kube install".to_owned(),
            Error::Elsewhere { namespace } => format!("say that it is meant: --manager-namespace {namespace}"),
            Error::NameTaken { delete, .. } => format!("choose another --name, or delete that one: {delete}"),
            Error::Files(error) => return error.hint().map(str::to_owned),
            _ => return None,
        };
        Some(hint)
    }
}

/// A message with all that caused it: of errors below the request only the innermost says something.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        below = cause.source();
    }
    text
}

/// What a watch met with.
pub(crate) fn watching(doing: &str, error: watcher::Error) -> Error {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => Error::met(doing, error),
        watcher::Error::WatchError(status) => Error::answered(doing.to_owned(), &status),
        other => Error::Passing { doing: doing.to_owned(), message: chain(&other) },
    }
}

/// What to say about a cluster whose GPUs are not what one may think.
pub fn remarks(ledger: &Ledger) -> Vec<String> {
    let remarks = ledger.remarks();
    let mut lines = Vec::new();
    if !remarks.not_counted.is_empty() {
        let nodes: Vec<String> =
            remarks.not_counted.iter().map(|(node, count)| format!("{node} ({count})")).collect();
        lines.push(format!(
            "GPUs that no device plug-in offers are not counted (given out by DRA, or not at all): {}",
            nodes.join(", ")
        ));
    }
    if !remarks.shared.is_empty() {
        let nodes: Vec<String> =
            remarks.shared.iter().map(|(node, into)| format!("{node} (by {into})")).collect();
        lines.push(format!("GPUs are time-sliced, so several ranks may share one: {}", nodes.join(", ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(message: &str) -> Error {
        Error::answered(
            "create pod a".to_owned(),
            &Status { code: 403, message: message.to_owned(), ..Status::default() },
        )
    }

    #[test]
    fn a_missing_right_is_told_from_what_is_not_admitted() {
        for message in [
            "pods is forbidden: User \"anna\" cannot create resource \"pods\" in API group \"\" in the namespace \"default\"",
            "forbidden: User \"system:anonymous\" cannot get path \"/version\"",
        ] {
            assert!(matches!(answered(message), Error::Forbidden { .. }), "{message}");
        }
        for message in [
            "admission webhook \"policy.example\" denied the request: containers cannot use hostPath volumes",
            "pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\": runAsNonRoot != true",
            "pods \"a\" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi",
        ] {
            assert!(matches!(answered(message), Error::Refused { .. }), "{message}");
        }
        let quota =
            "pods \"a\" is forbidden: exceeded quota: gpus, requested: pods=1, used: pods=2, limited: pods=2";
        assert!(matches!(answered(quota), Error::Quota { .. }));
    }
}

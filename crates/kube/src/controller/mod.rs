//! The controller: looks after every `RondeJob` of the cluster.
//!
//! Of several only the one that holds the lease acts (`lease.rs`). `jobs.rs` keeps the list of jobs, `rounds.rs` goes
//! through it again and again. What has come about is written into the job's status, and told as an event where people look
//! for it (`events.rs`). `serve.rs` answers whoever asks how we are, with what `figures.rs` has counted.

mod events;
mod figures;
mod jobs;
mod lease;
mod rounds;
mod serve;

use std::cell::RefCell;
use std::collections::HashSet;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use crate::Error;
use crate::act::Hands;
use crate::connect::{Connection, Which, connect};
use crate::job::Surroundings;
use crate::view::View;
use figures::Figures;
use jobs::Jobs;
use rounds::Rounds;

/// How the controller runs.
#[derive(Clone, Debug)]
pub struct Controller {
    /// Which cluster, and where the lease is.
    pub which: Which,
    /// What pods must know.
    pub around: Surroundings,
    /// Where health, readiness and figures are served.
    pub listen: SocketAddr,
    /// How long the first of the queue may be overtaken.
    pub hold_after: Duration,
    /// What this one is called among several.
    pub identity: String,
}

/// Runs until it is told to end, or until another has taken over.
pub async fn control(controller: Controller) -> Result<(), Error> {
    let on = |kind| signal(kind).map_err(|source| Error::System { doing: "wait for signals", source });
    let (mut interrupt, mut terminate) = (on(SignalKind::interrupt())?, on(SignalKind::terminate())?);
    let figures = Arc::new(Figures::default());
    serve::serve(controller.listen, Arc::clone(&figures)).await?;
    let connection = connect(&controller.which).await?;
    figures.answers(&connection.answers);
    let lease = lease::Lease::new(&connection, &controller.identity);
    let work = async {
        let since = lease.take().await?;
        figures.leads();
        // A task of its own, which planning for many jobs does not hold up. It ends with the set that it is in.
        let mut keeping = JoinSet::new();
        keeping.spawn(lease.clone().keep(since));
        tokio::select! {
            // First of all, so that one that slept does nothing more when it wakes up.
            biased;
            kept = keeping.join_next() => Err(match kept {
                Some(Ok(lost)) => lost,
                _ => lease::lost("the lease is not renewed any more"),
            }),
            ended = look_after(&controller, &connection, &figures) => ended,
        }
    };
    tokio::select! {
        result = work => return result,
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    lease.give_back().await;
    Ok(())
}

async fn look_after(
    controller: &Controller,
    connection: &Connection,
    figures: &Figures,
) -> Result<(), Error> {
    let client = &connection.client;
    let hands = Hands::new(client.clone(), connection.clock.clone(), controller.around.clone());
    let mut view = View::open(client);
    view.ready().await?;
    let (jobs, warnings) = (Jobs::default(), Warnings::default());
    let rounds = Rounds {
        jobs: &jobs,
        hands: &hands,
        view: &view,
        figures,
        warnings: &warnings,
        hold_after: SignedDuration::try_from(controller.hold_after).unwrap_or(SignedDuration::MAX),
    };
    tokio::select! {
        error = jobs.watch(client.clone()) => Err(error),
        error = rounds.run() => Err(error),
    }
}

/// What whoever runs the controller should know, said once.
#[derive(Default)]
struct Warnings(RefCell<HashSet<String>>);

impl Warnings {
    /// How many are remembered.
    const MOST: usize = 1000;

    fn say(&self, text: &str) {
        let mut said = self.0.borrow_mut();
        if said.len() >= Warnings::MOST {
            said.clear();
        }
        if said.insert(text.to_owned()) {
            let _ = writeln!(std::io::stderr(), "warning: {text}");
        }
    }
}

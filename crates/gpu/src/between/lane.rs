//! One communicator and the stream that its collectives are given to.

use std::sync::Arc;

use ronde_collective::{Alarm, Group};
use ronde_cuda::{Launcher, Mark, Stream};
use ronde_engine::Error;
use ronde_nccl::{Communicator, Group as Calls, Library, UniqueId, Who};

use crate::failure::{Trouble, of_cuda};
use crate::packing::Room;

/// Has a communicator given up when a rank is lost.
struct Breaker(Arc<Communicator>);

impl Alarm for Breaker {
    fn ring(&self) {
        let communicator = self.0.clone();
        // Giving up may take a while, and whoever rings must not be held up. Without a thread the watch finds out.
        let _ = std::thread::Builder::new()
            .name("ronde-abort".into())
            .spawn(move || communicator.abort("a rank of the job was lost"));
    }
}

/// See the module's text.
pub(crate) struct Lane {
    // Dropped before what waits for the stream: it waits for other ranks for a while and then gives up, which ends its work there.
    communicator: Arc<Communicator>,
    _breaker: Arc<Breaker>,
    pub(super) launcher: Launcher,
    /// Where small tensors lie together, or everybody's for reductions that NCCL does not know.
    fusion: Room,
}

impl Lane {
    /// Collective over the group, each member with a stream on its GPU.
    pub(crate) fn new(
        group: &mut Group,
        stream: &Arc<Stream>,
        library: &'static Library,
    ) -> Result<Lane, Error> {
        let device = stream.device();
        let who = Who {
            rank: group.members()[group.rank()],
            host: group.host_name(group.rank()),
            gpu: format!("GPU {}, {}", device.ordinal(), device.name()),
        };
        let id = UniqueId::from_bytes(agree_on_id(group, library, &who)?);
        let _entered = device.enter().map_err(of_cuda)?;
        let (rank, size) = (group.rank(), group.size());
        let check = || group.check().map_err(Trouble::from);
        let made = Communicator::new(library, &id, rank, size, who, &check);
        let communicator = Arc::new(made.map_err(|trouble| trouble.0)?);
        let breaker = Arc::new(Breaker(communicator.clone()));
        let alarm: Arc<dyn Alarm> = breaker.clone();
        group.on_loss(Arc::downgrade(&alarm))?;
        Ok(Lane { launcher: Launcher::new(stream), communicator, _breaker: breaker, fusion: Room::default() })
    }

    pub(crate) fn communicator(&self) -> &Arc<Communicator> {
        &self.communicator
    }

    pub(super) fn stream(&self) -> &Arc<Stream> {
        self.launcher.stream()
    }

    /// Starts calls of NCCL on the stream, as one.
    pub(crate) fn call(
        &self,
        group: &Group,
        fill: impl FnOnce(&mut Calls) -> Result<(), ronde_nccl::Error>,
    ) -> Result<(), Error> {
        let device = self.stream().device();
        let _entered = device.enter().map_err(of_cuda)?;
        let check = || group.check().map_err(Trouble::from);
        // SAFETY: the stream is this lane's, on the device whose context is current; tensors are the submitters', who keep them.
        let called = unsafe { self.communicator.on(self.stream().handle(), &check) }.group(fill);
        // A communicator that was given up since a rank is lost does not know which.
        called.map_err(|trouble| group.check().err().map_or(trouble.0, Error::from))
    }

    /// Memory for so many bytes, which everything given to the stream before is done with when it is used there.
    pub(super) fn room(&mut self, bytes: usize) -> Result<u64, Error> {
        self.fusion.of(self.launcher.stream(), bytes)
    }

    pub(super) fn end(&mut self) -> Result<Arc<Mark>, Error> {
        self.fusion.end();
        self.launcher.end().map_err(of_cuda)
    }

    /// Ends everything that is under way.
    pub(crate) fn give_up(&mut self) {
        self.communicator.abort("an operation of this process set failed");
        // Nothing of NCCL is left in the stream that could wait; a failure of the GPU has ended its work as well.
        let _ = self.stream().synchronize();
    }
}

/// The first member makes the name under which all meet, or says why it cannot.
fn agree_on_id(
    group: &mut Group,
    library: &'static Library,
    who: &Who,
) -> Result<[u8; UniqueId::LEN], Error> {
    let mut said = [0; UniqueId::LEN + 1];
    let mut failure = None;
    if group.rank() == 0 {
        match library.unique_id(who) {
            Ok(id) => {
                said[0] = 1;
                said[1..].copy_from_slice(id.bytes());
            }
            Err(error) => failure = Some(Error::ShutDown(error.to_string())),
        }
    }
    let all = group.gather_small(&said)?;
    let first: [u8; UniqueId::LEN + 1] = all[0].as_slice().try_into().unwrap_or(said);
    let mut id = [0; UniqueId::LEN];
    id.copy_from_slice(&first[1..]);
    match (failure, first[0]) {
        (Some(error), _) => Err(error),
        (None, 1) => Ok(id),
        _ => Err(Error::ShutDown(format!(
            "NCCL cannot be started on rank {}, where its message says why",
            group.members()[0]
        ))),
    }
}

//! What those who move bytes by other means than this crate's (GPUs among themselves) need of a group: some of its members by
//! themselves, memory and descriptors for those on one host, and word of a loss.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Weak;

use crate::error::{Error, Result};
use crate::group::Group;
use crate::memory::{Mapping, PAGE};

/// Marks the number of a group that is a part of another.
const SUBSET: u64 = 1 << 62;
/// Where its label lies in that number.
const LABEL: u32 = 48;
/// Marks what descriptors are handed over under, beside groups and control trees.
const TRADED: u64 = 1 << 61;

/// Told, once, when a rank is lost, from a thread that must not be held up.
pub trait Alarm: Send + Sync {
    /// A rank is lost; nothing that needs it will ever be done.
    fn ring(&self);
}

/// Zeroed memory that the members of a group on one host have mapped.
pub struct Pages {
    memory: Mapping,
    len: usize,
}

impl Pages {
    /// Where it begins, at a page.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.at(0)
    }

    /// How many bytes there are: whole pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Group {
    /// A group of some of the members, by their positions in this one, ascending, this rank among them. Collective over those
    /// members. A rank may be in one such part of a group for each `label`.
    pub fn subset(&self, positions: &[usize], label: u8) -> Result<Group> {
        let ranks: Vec<usize> =
            positions.iter().filter_map(|&position| self.members.get(position).copied()).collect();
        let hosts: Vec<Vec<usize>> = self
            .hosts
            .iter()
            .map(|host| host.iter().map(|&position| self.members[position]).collect())
            .collect();
        Group::form(&self.shared, &hosts, SUBSET | (u64::from(label) << LABEL) | self.id, &ranks)
    }

    /// Memory for all members, who have to be on one host. Collective.
    pub fn share_pages(&mut self, len: usize) -> Result<Pages> {
        let len = len.max(1).next_multiple_of(PAGE);
        let key = self.next_key()?;
        let memory = if self.me == 0 {
            let memory = Mapping::create(len)?;
            for &rank in &self.members[1..] {
                self.shared.give_memory(rank, key, memory.fd())?;
            }
            memory
        } else {
            Mapping::adopt(self.shared.await_memory(key, self.members[0])?, len)?
        };
        Ok(Pages { memory, len })
    }

    /// Gives every member a descriptor, and gets everybody's, one's own included, in order. All have to be on one host. Collective.
    pub fn trade(&mut self, own: BorrowedFd<'_>) -> Result<Vec<OwnedFd>> {
        let key = self.next_key()?;
        for &rank in self.members.iter().filter(|&&rank| rank != self.shared.rank) {
            self.shared.give_descriptors(rank, key | self.me as u64, &[own])?;
        }
        let me = self.me;
        self.members
            .iter()
            .enumerate()
            .map(|(position, &rank)| {
                if position == me {
                    let copy = own.as_fd().try_clone_to_owned();
                    return copy.map_err(Error::system("duplicating a descriptor"));
                }
                self.shared.await_memory(key | position as u64, rank)
            })
            .collect()
    }

    /// A key that no other descriptors of this job go by, with room for a position in the lowest bits.
    fn next_key(&mut self) -> Result<u64> {
        if self.hosts.len() != 1 || self.size() > usize::from(u16::MAX) {
            return Err(Error::Invalid("memory can be shared only by ranks of one host".into()));
        }
        self.traded = self.traded.wrapping_add(1);
        let number = (self.id & 0xffff) << 32;
        Ok(TRADED | (self.id & (SUBSET | 0xff << LABEL)) | number | (u64::from(self.traded) << 16))
    }

    /// Has `alarm` told when a rank of the job is lost; it is an error if one is already.
    pub fn on_loss(&self, alarm: Weak<dyn Alarm>) -> Result<()> {
        self.shared.on_loss(alarm)
    }

    /// Whether a wait for other ranks may go on: nobody is lost, no member on this host has given the group up, and nobody asked to
    /// stop waiting.
    pub fn check(&self) -> Result<()> {
        self.shared.check()?;
        self.host.as_ref().map_or(Ok(()), crate::host::Host::check)
    }

    /// The name of the host that a member runs on.
    pub fn host_name(&self, position: usize) -> String {
        self.members.get(position).map_or_else(String::new, |&rank| self.shared.host_of(rank))
    }
}

//! Who holds and who waits, over all lock homes of the pool, for people.

use super::{LockMode, Locks};
use crate::core::Core;
use crate::refused::{Refused, errno};
use hinterland_directory::locks::{LockAnswer, LockAsk, LockRow, LockWaiter};
use hinterland_directory::{Command, MemberState, Reply as DirectoryReply};
use hinterland_proto::control::{LockInfo, LockPerson, LockTable};
use hinterland_types::{NodeId, PageNumber};
use std::collections::HashMap;

impl Locks {
    /// Asks every member that is up.
    ///
    /// # Errors
    /// [`Refused`] if the directory cannot be asked who they are.
    pub fn list(&self, core: &Core) -> Result<LockTable, Refused> {
        let DirectoryReply::Members(members) = core.directory.apply(&Command::Members)? else {
            return Err(Refused::new(errno::EIO, "the directory did not list its members"));
        };
        let mut table = LockTable::default();
        let mut names = HashMap::new();
        for member in members {
            if !matches!(member.state, MemberState::Up) {
                table.silent.push((member.node, "it is down".to_owned()));
                continue;
            }
            self.links.know(member.node, &member.address);
            match self.ask_home(core, member.node, &LockAsk::List) {
                Ok((_, LockAnswer::Rows(rows))) => {
                    table.locks.extend(rows.iter().map(|row| describe(core, member.node, row, &mut names)));
                }
                Ok((_, other)) => table.silent.push((member.node, format!("it answered {other:?}"))),
                Err(refused) => table.silent.push((member.node, refused.text)),
            }
        }
        table.locks.sort_by_key(|lock| lock.address);
        Ok(table)
    }
}

type Names = HashMap<PageNumber, Option<(hinterland_types::ObjectName, u64)>>;

fn describe(core: &Core, home: NodeId, row: &LockRow, names: &mut Names) -> LockInfo {
    let page = row.address.page();
    let object = names.entry(page).or_insert_with(|| {
        let info = core.directory.lookup_page(page).ok()?;
        let first = info.pages?.address();
        Some((info.name, first.raw()))
    });
    let person = |other: &LockWaiter| LockPerson {
        node: other.node,
        session: other.session,
        pid: other.pid,
        mode: match other.mode {
            LockMode::Read => hinterland_proto::control::LockMode::Read,
            LockMode::Write => hinterland_proto::control::LockMode::Write,
        },
        bytes: other.bytes,
        for_ms: other.for_ms,
        left_ms: other.left_ms,
    };
    LockInfo {
        address: row.address,
        object: object.as_ref().map(|(name, first)| (name.clone(), row.address.raw() - first)),
        home,
        fence: row.fence.0,
        telling: row.telling,
        holders: row.holders.iter().map(person).collect(),
        waiters: row.waiters.iter().map(person).collect(),
    }
}

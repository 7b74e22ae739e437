//! A host: stands for election, leads with the real reign, writes one batch after another, and steps down.

use crate::failover::BrokenLeaderRule;
use crate::failover::store::{Question, Said, Store};
use hinterland_directory::{
    Command, Directory, DirectoryError, Judged, Reign, Reply, RequestId, Settings, Standing, believed_until,
};

/// After how long without an answer a question to the store is asked again, in milliseconds of the own clock.
const AGAIN_MS: u64 = 150;
/// Pause between two looks whether somebody leads.
const LOOK_MS: u64 = 100;

/// What a client is told.
pub(super) type Told = Option<Result<Reply, DirectoryError>>;

/// Where a host stands.
enum Phase {
    /// It waits until it is time to look.
    Idle {
        look_ms: u64,
    },
    /// It has asked something, at this time, on its way to lead.
    Asked {
        at_ms: u64,
        lease: Option<(u64, u64)>,
        reign: Option<u64>,
    },
    Leads(Box<Leading>),
}

struct Leading {
    reign: Reign,
    number: u64,
    lease: u64,
    mark: u64,
    /// The transaction on its way, and when it was sent last.
    sent: Option<(Question, u64)>,
    renewed_ms: u64,
    pending: Vec<(u64, u64, Judged)>,
}

/// What a host wants sent.
#[derive(Default)]
pub(super) struct Wants {
    /// To the store, with the number of the call.
    pub(super) store: Vec<(u64, Question)>,
    /// To clients: who, which attempt, what.
    pub(super) clients: Vec<(u64, u64, Told)>,
}

pub(super) struct Host {
    phase: Phase,
    next_call: u64,
    /// The call whose answer is waited for, apart from renewals.
    call: u64,
    /// Renewals on their way: call and time of sending.
    renewals: Vec<(u64, u64)>,
    broken: Option<BrokenLeaderRule>,
}

impl Host {
    /// A process that has just started; `first_call` is above the numbers of its life before.
    pub(super) const fn new(broken: Option<BrokenLeaderRule>, first_call: u64) -> Self {
        Self {
            phase: Phase::Idle { look_ms: 0 },
            next_call: first_call,
            call: 0,
            renewals: Vec::new(),
            broken,
        }
    }

    pub(super) const fn next_call(&self) -> u64 {
        self.next_call
    }

    fn ask(&mut self, question: Question, wants: &mut Wants) {
        self.next_call += 1;
        self.call = self.next_call;
        wants.store.push((self.call, question));
    }

    fn step_down(&mut self, now_ms: u64, wants: &mut Wants) {
        if let Phase::Leads(leading) = &mut self.phase {
            let pending = std::mem::take(&mut leading.pending);
            wants.clients.extend(pending.into_iter().map(|(client, attempt, _)| (client, attempt, None)));
        }
        self.phase = Phase::Idle { look_ms: now_ms + LOOK_MS };
    }

    /// Time passes.
    pub(super) fn wake(&mut self, now_ms: u64, wants: &mut Wants) {
        match &mut self.phase {
            Phase::Idle { look_ms } if now_ms >= *look_ms => {
                self.phase = Phase::Asked { at_ms: now_ms, lease: None, reign: None };
                self.ask(Question::Leader, wants);
            }
            Phase::Asked { at_ms, .. } if now_ms >= *at_ms + 2 * AGAIN_MS => {
                self.phase = Phase::Idle { look_ms: now_ms + LOOK_MS };
            }
            Phase::Idle { .. } | Phase::Asked { .. } => {}
            Phase::Leads(_) => self.lead_on(now_ms, wants),
        }
    }

    fn lead_on(&mut self, now_ms: u64, wants: &mut Wants) {
        let forever = self.broken == Some(BrokenLeaderRule::BelievesForEver);
        let Phase::Leads(leading) = &mut self.phase else { return };
        if now_ms >= leading.renewed_ms + Store::TTL_MS / 5 {
            leading.renewed_ms = now_ms;
            self.next_call += 1;
            self.renewals.push((self.next_call, now_ms));
            wants.store.push((self.next_call, Question::Renew(leading.lease)));
        }
        if let Some((question, at_ms)) = &mut leading.sent
            && now_ms >= *at_ms + AGAIN_MS
        {
            // In doubt: the same again, as long as this host may lead.
            if !forever && !leading.reign.is_believed(now_ms) {
                return self.step_down(now_ms, wants);
            }
            *at_ms = now_ms;
            let question = question.clone();
            self.ask(question, wants);
        }
        self.settle(now_ms, wants);
    }

    /// Sends the next batch, and answers who can be answered.
    fn settle(&mut self, now_ms: u64, wants: &mut Wants) {
        let broken = self.broken;
        let Phase::Leads(leading) = &mut self.phase else { return };
        let Leading { reign, pending, sent, number, mark, .. } = &mut **leading;
        if broken == Some(BrokenLeaderRule::BelievesForEver) {
            reign.renewed(now_ms, Store::TTL_MS);
        }
        let early = broken == Some(BrokenLeaderRule::AnswerBeforeDurable);
        let mut waiting = Vec::new();
        for (client, attempt, judged) in pending.drain(..) {
            match reign.standing(now_ms, &judged) {
                Standing::Wait if !early => waiting.push((client, attempt, judged)),
                Standing::Answer | Standing::Wait => {
                    wants.clients.push((client, attempt, Some(judged.outcome)))
                }
                Standing::CutOff | Standing::Ended(_) => wants.clients.push((client, attempt, None)),
            }
        }
        *pending = waiting;
        if sent.is_none()
            && let Some(batch) = reign.begin_write()
        {
            let question = Question::Commit {
                reign: *number,
                behind: (*number, *mark),
                mark: (*number, *mark + 1),
                mutations: batch.mutations,
            };
            *sent = Some((question.clone(), now_ms));
            self.ask(question, wants);
        }
    }

    /// A client asks.
    pub(super) fn asked(
        &mut self,
        now_ms: u64,
        (client, attempt): (u64, u64),
        id: Option<RequestId>,
        command: &Command,
        wants: &mut Wants,
    ) {
        let judged = match &mut self.phase {
            Phase::Leads(leading) => {
                if self.broken == Some(BrokenLeaderRule::BelievesForEver) {
                    leading.reign.renewed(now_ms, Store::TTL_MS);
                }
                leading.reign.judge(now_ms, id, command)
            }
            Phase::Idle { .. } | Phase::Asked { .. } => None,
        };
        match (judged, &mut self.phase) {
            (Some(judged), Phase::Leads(leading)) => leading.pending.push((client, attempt, judged)),
            _ => wants.clients.push((client, attempt, None)),
        }
        self.settle(now_ms, wants);
    }

    /// The store answers.
    pub(super) fn told(
        &mut self,
        now_ms: u64,
        call: u64,
        said: Said,
        wants: &mut Wants,
    ) -> Result<(), String> {
        if let Some(place) = self.renewals.iter().position(|(renewal, _)| *renewal == call) {
            let (_, sent_ms) = self.renewals.swap_remove(place);
            match (&mut self.phase, said) {
                (Phase::Leads(leading), Said::Renewed(true)) => leading.reign.renewed(sent_ms, Store::TTL_MS),
                (Phase::Leads(_), Said::Renewed(false)) => self.step_down(now_ms, wants),
                _ => {}
            }
            self.settle(now_ms, wants);
            return Ok(());
        }
        if call != self.call {
            return Ok(());
        }
        match &mut self.phase {
            Phase::Leads(leading) => {
                let Said::Committed(done) = said else { return Ok(()) };
                if !done {
                    self.step_down(now_ms, wants);
                    return Ok(());
                }
                if leading.sent.take().is_some() {
                    leading.mark += 1;
                    leading.reign.written();
                }
                self.settle(now_ms, wants);
            }
            Phase::Asked { at_ms, lease, reign, .. } => {
                let (at_ms, lease, reign) = (*at_ms, *lease, *reign);
                return self.further(now_ms, said, at_ms, lease, reign, wants);
            }
            Phase::Idle { .. } => {}
        }
        Ok(())
    }

    /// One step further on the way to lead.
    fn further(
        &mut self,
        now_ms: u64,
        said: Said,
        asked_ms: u64,
        lease: Option<(u64, u64)>,
        reign: Option<u64>,
        wants: &mut Wants,
    ) -> Result<(), String> {
        let (question, lease, reign) = match (said, lease, reign) {
            (Said::Leader(false), ..) => (Question::Grant, None, None),
            (Said::Granted(lease), ..) => (Question::Stand(lease), Some((lease, asked_ms)), None),
            (Said::Stood(Some(reign)), lease, _) => (Question::Load, lease, Some(reign)),
            (Said::Records(records), Some((lease, sent_ms)), Some(number)) => {
                let settings = Settings { lease_ms: u64::MAX / 4 };
                let directory = Directory::recover(settings, now_ms, records)
                    .map_err(|error| format!("a new leader cannot load: {error}"))?;
                directory.check().map_err(|error| format!("a new leader finds {error}"))?;
                let reign = Reign::new(directory, believed_until(sent_ms, Store::TTL_MS));
                let leading =
                    Leading { reign, number, lease, mark: 0, sent: None, renewed_ms: 0, pending: Vec::new() };
                self.phase = Phase::Leads(Box::new(leading));
                return Ok(());
            }
            _ => {
                self.phase = Phase::Idle { look_ms: now_ms + LOOK_MS };
                return Ok(());
            }
        };
        self.phase = Phase::Asked { at_ms: now_ms, lease, reign };
        self.ask(question, wants);
        Ok(())
    }
}

//! Questions: each is answered, with an error if it cannot be.

use super::{Executor, check_geometry, modules};
use crate::body::Body;
use crate::device::{Device, Tensor};
use crate::failure::{Failure, number};
use crate::work::Rows;
use hinterland_proto::gpu::command::{
    AskClusters, AskFunction, AskGrant, AskOccupancy, AskSymbol, AskTensorMap,
};

impl<D: Device> Executor<D> {
    /// Sends the answer. A refusal is told by it alone: whoever asked waits for nothing else.
    fn reply(&self, question: u32, result: Result<Vec<u8>, Failure>) -> Result<(), Failure> {
        self.outbox.answer(question, result.map_err(|failure| failure.error));
        Ok(())
    }

    pub(super) fn ask_function(&mut self, ask: &AskFunction) -> Result<(), Failure> {
        let known = self.modules.parameter_bytes(ask.function);
        let facts = known.and_then(|_| self.device.function_facts(ask.function)).and_then(|facts| {
            postcard::to_stdvec(&facts)
                .map_err(|error| Failure::new(number::UNKNOWN, format!("facts cannot be sent: {error}")))
        });
        self.reply(ask.question, facts)
    }

    pub(super) fn ask_occupancy(&mut self, ask: &AskOccupancy) -> Result<(), Failure> {
        let known = self.modules.parameter_bytes(ask.function);
        let groups = known.and_then(|_| self.device.occupancy(ask));
        self.reply(ask.question, groups.map(|groups| groups.to_le_bytes().to_vec()))
    }

    pub(super) fn ask_clusters(&mut self, ask: &AskClusters) -> Result<(), Failure> {
        let known = self.modules.parameter_bytes(ask.function);
        let fits = known.and_then(|_| check_geometry(ask.grid, ask.block));
        let groups = fits.and_then(|()| self.device.clusters(ask));
        self.reply(ask.question, groups.map(|groups| groups.to_le_bytes().to_vec()))
    }

    pub(super) fn ask_symbol(&mut self, ask: &AskSymbol, body: Body<'_>) -> Result<(), Failure> {
        let name = self.modules.known(ask.module).and_then(|()| modules::name(body.tail(AskSymbol::BYTES)));
        let place = name.and_then(|name| self.device.symbol(ask.module, &name));
        if let Ok((address, length)) = place {
            self.memory.note_variable(ask.module, address, length);
        }
        let bytes =
            place.map(|(address, length)| [address.to_le_bytes(), length.to_le_bytes()].concat().to_vec());
        self.reply(ask.question, bytes)
    }

    pub(super) fn ask_tensor_map(&mut self, ask: &AskTensorMap, body: Body<'_>) -> Result<(), Failure> {
        let map = self.tensor(ask, body).and_then(|tensor| self.device.tensor_map(ask, &tensor));
        self.reply(ask.question, map.map(|bytes| bytes.to_vec()))
    }

    /// The tail of a question for a tensor map, and whether its memory begins in this session's.
    fn tensor(&self, ask: &AskTensorMap, body: Body<'_>) -> Result<Tensor, Failure> {
        self.known_device(ask.device)?;
        self.memory.check(&Rows::one(ask.address, 1))?;
        let mut bytes = Vec::new();
        body.tail(AskTensorMap::BYTES).append_to(&mut bytes);
        Tensor::read(ask.rank, &bytes)
    }

    pub(super) fn ask_grant(&mut self, ask: &AskGrant) -> Result<(), Failure> {
        let grant = self.change_grant(ask.device, ask.least, ask.wanted);
        self.reply(
            ask.question,
            grant.map(|(bytes, left)| [bytes.to_le_bytes(), left.to_le_bytes()].concat()),
        )
    }
}

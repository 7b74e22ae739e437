//! Asking a GPU node what it does, as a client.

use hinterland_channel::{Address, ChannelError, ChannelOptions, Receiver, Sender, connect};
use hinterland_proto::gpu::{GpuStatus, LIST, answer::AnswerMessage};
use hinterland_proto::{ClientIdentity, Features, PoolId, PoolKey, Role};
use hinterland_types::NodeId;
use std::time::Duration;

/// How long the node may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// A connection to a node, for questions only.
#[derive(Debug)]
pub struct Inquiry {
    sender: Sender,
    receiver: Receiver,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum InquiryError {
    /// The channel.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The node said something else, or nothing.
    #[error("the GPU node {0} (hint: its log says more; both sides must be of one version)")]
    Answer(String),
}

impl Inquiry {
    /// Connects.
    ///
    /// # Errors
    /// [`InquiryError::Channel`].
    pub fn open(address: &Address, key: Option<PoolKey>) -> Result<Self, InquiryError> {
        let identity = ClientIdentity {
            role: Role::Client,
            node: NodeId(0),
            pool: PoolId::ANY,
            key,
            features: Features(0),
            join: None,
        };
        let (sender, receiver) = connect(address, &identity, ChannelOptions::default())?.split()?;
        Ok(Self { sender, receiver })
    }

    /// What the node does.
    ///
    /// # Errors
    /// [`InquiryError`].
    pub fn ask(&mut self) -> Result<GpuStatus, InquiryError> {
        self.sender.wait_room(0, Some(ANSWER_TIME))?;
        if let Some(room) = self.sender.room(LIST, 0)? {
            room.commit();
        }
        if !self.receiver.wait(Some(ANSWER_TIME))? {
            return Err(InquiryError::Answer("does not answer".to_owned()));
        }
        let Some(mut frame) = self.receiver.next()? else {
            return Err(InquiryError::Answer("does not answer".to_owned()));
        };
        let word = frame.word();
        if word != LIST {
            let fields = AnswerMessage::field_bytes(word).unwrap_or(0);
            let words = String::from_utf8_lossy(frame.bytes().get(fields..).unwrap_or_default()).into_owned();
            return Err(InquiryError::Answer(format!("says {words:?}")));
        }
        postcard::from_bytes(frame.bytes())
            .map_err(|error| InquiryError::Answer(format!("says what cannot be read: {error}")))
    }
}

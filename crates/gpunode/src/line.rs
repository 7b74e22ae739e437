//! A channel as the way to the client.

use crate::outbox::{Gone, Line};
use hinterland_channel::Sender;
use std::time::Duration;

impl Line for Sender {
    fn body_bytes_max(&self) -> usize {
        self.body_max()
    }

    fn send(&mut self, word: u32, fields: &[u8], tail: &[u8]) -> Result<bool, Gone> {
        let Some(mut room) = self.room(word, fields.len() + tail.len()).map_err(gone)? else {
            return Ok(false);
        };
        room.append(fields).map_err(gone)?;
        room.append(tail).map_err(gone)?;
        room.commit();
        Ok(true)
    }

    fn wait(&mut self, bytes: usize, at_most: Duration) -> Result<(), Gone> {
        self.wait_room(bytes, Some(at_most)).map(drop).map_err(gone)
    }
}

fn gone(error: hinterland_channel::ChannelError) -> Gone {
    tracing::debug!("the way to the client ended: {error}");
    Gone
}

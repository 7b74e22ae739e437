//! What the node is told of instances whose nodes change.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::sync::Arc;

use hinterland_proto::gpu::command::{BlasGemm, BlasSet, Fill};

use super::super::capture_mode::CaptureMode;
use super::super::hostile::{HERE, with_lasting_session};
use super::super::list::List;
use super::super::node::{Given, Node, NodeKind};
use super::super::outbox::Effect;
use super::super::stream::{APART, Stream};

/// A node that fills nothing, in a stream.
fn fill(stream: &Stream) -> Node {
    let fill = Fill { stream: stream.number, element: 1, address: 0, count: 0, value: 0 };
    let mut list = List::default();
    list.push(stream.number, None, &fill, 0, |_| ()).unwrap();
    Node::own(NodeKind::Fill, list, Given::Nothing)
}

/// A product of a handle; only that is looked at.
fn product(handle: u32) -> BlasGemm {
    BlasGemm { handle, ..BlasGemm::take(&[0; BlasGemm::BYTES]) }
}

#[test]
fn a_product_that_becomes_something_else_takes_its_settings_with_it_and_leaves_those_of_others() {
    with_lasting_session(|session| {
        let handle = session.blas.create(session, HERE).unwrap();
        let stream = session.create_stream(HERE, APART, 0).unwrap();
        session.begin_capture(&stream, CaptureMode::Relaxed).unwrap();
        for mode in [1, 2] {
            let set = BlasSet { handle, property: 4, value: mode, more: 0 };
            session.issue(&stream, Effect::Quiet, &set, 0, |_| ()).unwrap();
            session.issue(&stream, Effect::Visible, &product(handle), 0, |_| ()).unwrap();
        }
        let graph = session.end_capture(&stream).unwrap();
        let nodes = session.nodes(&graph).unwrap();
        let exec = session.instantiate(&graph, 0).unwrap();
        let with = Node { kind: NodeKind::Kernel, ..fill(&stream) };
        let said = || {
            let mut said = Vec::new();
            session
                .with_instance(exec, |does| {
                    let list = &does.definition().done;
                    said.extend((0..list.entries.len()).map(|entry| match list.frame(entry) {
                        (BlasSet::WORD, body) => (BlasSet::WORD, BlasSet::take(body).value),
                        (word, _) => (word, 0),
                    }));
                    Ok(())
                })
                .unwrap();
            said
        };
        session.change_exec_node(exec, nodes[0], &with).unwrap();
        assert_eq!(said(), [(Fill::WORD, 0), (BlasSet::WORD, 2), (BlasGemm::WORD, 0)]);
        session.change_exec_node(exec, nodes[1], &with).unwrap();
        assert_eq!(said(), [(Fill::WORD, 0), (Fill::WORD, 0)]);
    });
}

#[test]
fn a_launch_in_another_stream_waits_for_the_one_before_where_the_driver_may_have_made_the_instance_anew() {
    with_lasting_session(|session| {
        let streams = [(); 2].map(|()| session.create_stream(HERE, APART, 0).unwrap());
        let graph = session.add_graph(HERE, 0).unwrap();
        let nodes = [(); 2].map(|()| session.add_node(&graph, &[], fill(&streams[0])).unwrap());
        let exec = session.instantiate(&graph, 0).unwrap();
        let is_done = |stream: &Arc<Stream>| stream.has_reached(stream.last());
        let launch = |at: usize| session.launch_exec(exec, &streams[at]).unwrap();
        launch(0);
        launch(1);
        assert!(!is_done(&streams[0]), "the node itself orders launches of one instance");
        session.switch_exec_node(exec, nodes[0], false).unwrap();
        launch(0);
        assert!(is_done(&streams[1]));
        session.change_exec_node(exec, nodes[1], &fill(&streams[1])).unwrap();
        launch(1);
        assert!(is_done(&streams[0]));
        session.update_exec(exec, &graph).unwrap();
        launch(0);
        assert!(is_done(&streams[1]));
        launch(1);
        assert!(!is_done(&streams[0]));
    });
}

//! What the node is told of instances whose nodes change.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::sync::Arc;

use hinterland_proto::gpu::command::Fill;

use super::super::hostile::{HERE, with_lasting_session};
use super::super::list::List;
use super::super::node::{Given, Node, NodeKind};
use super::super::stream::{APART, Stream};

/// A node that fills nothing, in a stream.
fn fill(stream: &Stream) -> Node {
    let fill = Fill { stream: stream.number, element: 1, address: 0, count: 0, value: 0 };
    let mut list = List::default();
    list.push(stream.number, None, &fill, 0, |_| ()).unwrap();
    Node::own(NodeKind::Fill, list, Given::Nothing)
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

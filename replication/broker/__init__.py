"""One broker: ``broker`` wires it together; its membership, and what it asks the controller."""

module github.com/embedcni/cni/examples/overlay

go 1.25.0

require (
	github.com/embedcni/cni v0.0.0
	github.com/vishvananda/netlink v1.3.1
	golang.org/x/net v0.54.0
	golang.org/x/sys v0.44.0
)

require (
	github.com/containernetworking/cni v1.3.0 // indirect
	github.com/coreos/go-iptables v0.8.0 // indirect
	github.com/go-logr/logr v1.4.3 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/godbus/dbus/v5 v5.2.4 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	go.opentelemetry.io/otel v1.29.0 // indirect
	go.opentelemetry.io/otel/metric v1.29.0 // indirect
	go.opentelemetry.io/otel/trace v1.29.0 // indirect
)

replace github.com/embedcni/cni => ../..

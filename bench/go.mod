module github.com/embedcni/cni/bench

go 1.25.0

require (
	github.com/containerd/go-cni v1.1.14
	github.com/containernetworking/plugins v1.9.1
	github.com/embedcni/cni v0.0.0
	github.com/sasha-s/go-deadlock v0.3.5
	github.com/vishvananda/netlink v1.3.1
	github.com/vishvananda/netns v0.0.5
	golang.org/x/sys v0.44.0
)

require (
	github.com/alexflint/go-filemutex v1.3.0 // indirect
	github.com/containernetworking/cni v1.3.1 // indirect
	github.com/coreos/go-iptables v0.8.0 // indirect
	github.com/go-logr/logr v1.4.3 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/godbus/dbus/v5 v5.2.4 // indirect
	github.com/petermattis/goid v0.0.0-20240813172612-4fcff4a6cae7 // indirect
	go.opentelemetry.io/otel v1.29.0 // indirect
	go.opentelemetry.io/otel/metric v1.29.0 // indirect
	go.opentelemetry.io/otel/trace v1.29.0 // indirect
	golang.org/x/net v0.48.0 // indirect
	golang.org/x/tools v0.39.0 // indirect
)

replace github.com/embedcni/cni => ../

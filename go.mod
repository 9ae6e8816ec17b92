module github.com/embedcni/cni

go 1.23.0

toolchain go1.24.2

require (
	github.com/containernetworking/cni v1.3.0
	github.com/godbus/dbus/v5 v5.1.0
	github.com/mdlayher/netlink v1.7.2
	github.com/vishvananda/netlink v1.3.1
	github.com/vishvananda/netns v0.0.5
	go.opentelemetry.io/otel v1.29.0
	go.opentelemetry.io/otel/trace v1.29.0
	golang.org/x/sys v0.23.0
)

require (
	github.com/go-logr/logr v1.4.2 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/google/go-cmp v0.6.0 // indirect
	github.com/josharian/native v1.1.0 // indirect
	github.com/mdlayher/socket v0.4.1 // indirect
	go.opentelemetry.io/otel/metric v1.29.0 // indirect
	golang.org/x/net v0.28.0 // indirect
	golang.org/x/sync v0.1.0 // indirect
)

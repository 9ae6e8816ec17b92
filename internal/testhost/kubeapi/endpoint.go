package kubeapi

import (
	"context"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
)

// Endpoint is where clients reach a server, over TLS.
type Endpoint struct {
	server *httptest.Server
	stop   context.CancelFunc
}

// Listen serves a handler at a listener until [Endpoint.Stop].
func Listen(l net.Listener, h http.Handler) *Endpoint {
	ctx, stop := context.WithCancel(context.Background())
	e := &Endpoint{server: &httptest.Server{Listener: l, Config: &http.Server{
		Handler: h, BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog: log.New(io.Discard, "", 0), // of clients that were killed
	}}, stop: stop}
	e.server.StartTLS()
	return e
}

// Address returns the address with the port.
func (e *Endpoint) Address() string { return e.server.Listener.Addr().String() }

// CA returns the certificate that a client trusts, in PEM.
func (e *Endpoint) CA() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: e.server.Certificate().Raw})
}

// Stop cuts all connections. From then on new ones are refused.
func (e *Endpoint) Stop() {
	e.server.CloseClientConnections()
	e.stop() // the watches that have begun meanwhile
	e.server.Close()
}

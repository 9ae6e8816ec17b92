package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	prefix  = "/coreos.com/network/" // flannel's default
	subnets = prefix + "subnets/"
)

// etcd is Debian's etcd, and the few requests that the story makes, in the JSON of its gateway
// (https://etcd.io/docs/v3.4/dev-guide/api_grpc_gateway/).
type etcd struct {
	dir, url string
	service  *service
}

// start starts etcd with what is in its directory.
func (e *etcd) start(ctx context.Context) (err error) {
	if err := os.Setenv("ETCD_UNSUPPORTED_ARCH", runtime.GOARCH); err != nil { // etcd 3.4 asks for it on arm64
		return err
	}
	e.service, err = startService(ctx, "etcd", "--name", "wire", "--data-dir", e.dir,
		"--listen-client-urls", e.url, "--advertise-client-urls", e.url,
		"--listen-peer-urls", "http://127.0.0.1:2380", "--initial-advertise-peer-urls", "http://127.0.0.1:2380",
		"--initial-cluster", "wire=http://127.0.0.1:2380")
	return err
}

// stop ends etcd, if it runs.
func (e *etcd) stop() {
	if e.service != nil {
		e.service.stop(unix.SIGTERM)
		e.service = nil
	}
}

// header is part of each answer.
type header struct {
	Header struct {
		Revision string `json:"revision"`
	} `json:"header"`
}

type keyValue struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value,omitempty"`
}

// ask sends a request, and decodes the answer.
func (e *etcd) ask(ctx context.Context, method string, request, answer any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+"/v3/kv/"+method, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd answers to %s: %s: %s", method, resp.Status, data)
	}
	return json.Unmarshal(data, answer)
}

// version returns the version of the running etcd.
func (e *etcd) version(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url+"/version", nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var answer struct {
		Version string `json:"etcdserver"`
	}
	return answer.Version, json.NewDecoder(resp.Body).Decode(&answer)
}

// put sets a key, and returns the revision.
func (e *etcd) put(ctx context.Context, key string, value []byte) (revision string, err error) {
	var answer header
	err = e.ask(ctx, "put", keyValue{[]byte(key), value}, &answer)
	return answer.Header.Revision, err
}

// remove removes a key that must be there.
func (e *etcd) remove(ctx context.Context, key string) error {
	var answer struct {
		Deleted string `json:"deleted"`
	}
	if err := e.ask(ctx, "deleterange", keyValue{Key: []byte(key)}, &answer); err != nil {
		return err
	}
	if answer.Deleted != "1" {
		return fmt.Errorf("etcd has removed %q keys %s, not one", answer.Deleted, key)
	}
	return nil
}

// compact forgets all revisions before one.
func (e *etcd) compact(ctx context.Context, revision string) error {
	return e.ask(ctx, "compaction", map[string]any{"revision": revision, "physical": true}, &header{})
}

// leaseOf returns the key of the lease of a subnet.
func (e *etcd) leaseOf(ctx context.Context, subnet netip.Prefix) (key string, err error) {
	var answer struct {
		Found []keyValue `json:"kvs"`
	}
	end := subnets[:len(subnets)-1] + "0" // '0' follows '/'
	if err := e.ask(ctx, "range", map[string][]byte{"key": []byte(subnets), "range_end": []byte(end)}, &answer); err != nil {
		return "", err
	}
	want := subnets + strings.ReplaceAll(subnet.String(), "/", "-")
	for _, one := range answer.Found {
		if key := string(one.Key); key == want || strings.HasPrefix(key, want+"&") {
			return key, nil
		}
	}
	return "", fmt.Errorf("etcd has no lease of %s among %d", subnet, len(answer.Found))
}

// flannelNetwork is flannel's configuration. flanneld makes its rules with nft.
type flannelNetwork struct {
	Network        string
	SubnetLen      int
	EnableIPv6     bool
	IPv6Network    string
	IPv6SubnetLen  int
	EnableNFTables bool
	Backend        struct{ Type string }
}

// configure has flannelds that start from now on use a backend.
func (e *etcd) configure(ctx context.Context, backend string) error {
	n := flannelNetwork{
		Network: "10.244.0.0/16", SubnetLen: 24, EnableIPv6: true, IPv6Network: "fd00:10:244::/48", IPv6SubnetLen: 64,
		EnableNFTables: true,
	}
	n.Backend.Type = backend
	value, err := json.Marshal(n)
	if err == nil {
		_, err = e.put(ctx, prefix+"config", value)
	}
	return err
}

// reserve keeps a subnet for a host that is not there, as an administrator of flannel does
// (https://github.com/flannel-io/flannel/blob/master/Documentation/reservations.md).
func (e *etcd) reserve(ctx context.Context, key string) error {
	_, err := e.put(ctx, key, []byte(`{"PublicIP":"`+address(250).String()+`"}`))
	return err
}

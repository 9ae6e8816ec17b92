package shim

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/embedcni/cni/thick/internal/wire"
)

// readConfig reads and checks the configuration on standard input, and applies its fields.
func (c *call) readConfig() *types.Error {
	data, err := io.ReadAll(io.LimitReader(c.Stdin, wire.MaxRequest+1))
	if err != nil {
		return types.NewError(types.ErrIOFailure, "error reading from stdin: "+err.Error(), "")
	}
	if len(data) > wire.MaxRequest {
		return types.NewError(types.ErrInvalidNetworkConfig, "the configuration is too long", fmt.Sprintf("more than %d bytes", wire.MaxRequest))
	}
	conf, cerr := wire.ParseConf(c.args.Command, data)
	if cerr != nil {
		return cerr
	}
	var fields struct {
		SocketDir *string `json:"daemonSocketDir"`
	}
	if err := json.Unmarshal(data, &fields); err != nil {
		return types.NewError(types.ErrDecodingFailure, "network configuration: "+err.Error(), "")
	}
	c.config, c.network, c.version = data, conf.Name, conf.CNIVersion
	if fields.SocketDir != nil {
		c.Socket = filepath.Join(*fields.SocketDir, filepath.Base(cmp.Or(c.Socket, wire.SocketName)))
	}
	if !filepath.IsAbs(c.Socket) {
		return types.NewError(types.ErrInvalidNetworkConfig, "the daemon's socket has no absolute path", fmt.Sprintf("%q", c.Socket))
	}
	return nil
}

// request returns the body of the request.
func (c *call) request(env map[string]string) ([]byte, *types.Error) {
	body, err := json.Marshal(wire.Request{Env: env, Config: c.config})
	if err != nil {
		return nil, types.NewError(types.ErrInternal, "encode the request: "+err.Error(), "")
	}
	if len(body) > wire.MaxRequest {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "the configuration is too long", fmt.Sprintf("the request has %d bytes, and may have %d", len(body), wire.MaxRequest))
	}
	return body, nil
}

// versions answers VERSION.
func (c *call) versions() ([]byte, error) {
	var out bytes.Buffer
	if err := version.All.Encode(&out); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// print returns the result of ADD in the version of the configuration.
func (c *call) print(result *types100.Result) ([]byte, error) {
	if result == nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the daemon has answered ADD without a result", "")
	}
	converted, err := result.GetAsVersion(c.version)
	if err != nil {
		return nil, types.NewError(types.ErrIncompatibleCNIVersion, "convert the result: "+err.Error(), "")
	}
	var out bytes.Buffer
	if err := converted.PrintTo(&out); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// errorObject returns an error as standard output has it.
func (c *call) errorObject(err error) []byte {
	said := asCNI(err)
	out, merr := json.MarshalIndent(struct {
		Version string `json:"cniVersion"`
		*types.Error
	}{cmp.Or(c.version, version.Current()), said}, "", "    ")
	if merr != nil {
		c.note("%v: %v", err, merr)
	}
	return append(out, '\n')
}

func (c *call) note(format string, args ...any) {
	fmt.Fprintf(c.Stderr, "%s "+format+"\n", append([]any{time.Now().UTC().Format(time.RFC3339)}, args...)...)
}

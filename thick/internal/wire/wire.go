// Package wire is the request and the answer on the socket between a CNI shim and the
// daemon behind it. The form is the one of Multus' thick plugin (v4.3.0, pkg/server/api):
//
//	POST /cni {"env": {"CNI_COMMAND": "ADD", …}, "config": "eyJuYW1lIjoi…"}
//
//	200 {"Result": {"cniVersion": "1.1.0", "ips": […]}}
//	400 {"code": 7, "msg": "missing network name", "details": "…"}
//
// The configuration is base64, as encoding/json writes bytes. The body of a success is
// empty for every verb but ADD and VERSION.
package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// SocketName is the file name of the socket in its directory, by which Multus' shim
// finds it.
const SocketName = "multus.sock"

// Paths of the requests. A Multus shim asks for the last two by POST with the body null:
// before DEL for /healthz, before other verbs for /readyz, or for /healthz if it is
// v4.3.0 or older.
const (
	PathCNI    = "/cni"
	PathOldCNI = "/" // of shims before Multus v4.0.0, which ask for no readiness
	PathHealth = "/healthz"
	PathReady  = "/readyz"
)

// MaxRequest is a limit in bytes for DecodeRequest that every honest request keeps. The
// largest is a GC, which takes some hundred bytes for each attachment of the host.
const MaxRequest = 4 << 20

// ErrTooLarge: the request has more bytes than the reader accepts.
var ErrTooLarge = errors.New("request too large")

// Request is a CNI call: the plugin's environment and standard input.
type Request struct {
	Env    map[string]string `json:"env,omitempty"`
	Config Config            `json:"config,omitempty"`
}

// Config is a network configuration. It is encoded as base64, and decoded from base64 or
// from a JSON object, whose bytes are kept as they are.
type Config []byte

// UnmarshalJSON accepts a base64 string, a JSON object and null.
func (c *Config) UnmarshalJSON(data []byte) error {
	switch data[0] {
	case '{':
		*c = bytes.Clone(data)
		return nil
	case '"', 'n':
		if err := json.Unmarshal(data, (*[]byte)(c)); err != nil {
			return fmt.Errorf("config: %w", err)
		}
		return nil
	}
	return errors.New("config: neither a base64 string nor an object")
}

// DecodeRequest reads a request of at most limit bytes. A longer one is ErrTooLarge, and
// the rest of it is not read; one that is not a request is a *types.Error with code 6. An
// error of the reader is returned as it is.
func DecodeRequest(body io.Reader, limit int64) (*Request, error) {
	data, err := io.ReadAll(io.LimitReader(body, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read request: %w", err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
	}
	var r Request
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "request: "+err.Error(), "")
	}
	return &r, nil
}

// Environ returns the variables of an environment that belong to the CNI call, from
// "key=value" strings as os.Environ returns them. A shim's other variables are none of the
// daemon's business.
func Environ(environ []string) map[string]string {
	env := map[string]string{}
	for _, variable := range environ {
		if key, value, ok := strings.Cut(variable, "="); ok && strings.HasPrefix(key, "CNI_") {
			env[key] = value
		}
	}
	return env
}

// response is the answer to ADD.
type response struct {
	Result *types100.Result
}

// EncodeResult returns the body of the answer to ADD. The result may be of any version.
func EncodeResult(result types.Result) ([]byte, error) {
	if result == nil {
		return nil, errors.New("no result")
	}
	converted, err := types100.NewResultFromResult(result)
	if err != nil {
		return nil, fmt.Errorf("convert result: %w", err)
	}
	return json.Marshal(response{converted})
}

// DecodeResult reads the body of an answer with status 200. It returns nil for an answer
// without a result, which only ADD has.
func DecodeResult(body []byte) (*types100.Result, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil, nil
	}
	var r response
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "answer of the daemon: "+err.Error(), "")
	}
	return r.Result, nil
}

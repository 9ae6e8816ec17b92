package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/types"
)

// EncodeError returns the body that reports an error, and its media type: the error
// object (CNI specification 1.1.0, section 5) if err is or wraps a *types.Error, and
// otherwise its text.
func EncodeError(err error) (body []byte, contentType string) {
	if said := (*types.Error)(nil); errors.As(err, &said) {
		if body, err := json.Marshal(said); err == nil {
			return body, "application/json"
		}
	}
	return []byte(err.Error() + "\n"), "text/plain; charset=utf-8"
}

// longestText limits how much of an unknown answer is quoted, in bytes.
const longestText = 4 << 10

// DecodeError returns the error that an answer with a status other than 200 reports. An
// error object keeps its code, message and details. Text, as Multus before v4.3.0 answers,
// gets code 999, and the status as detail.
func DecodeError(status int, body []byte) *types.Error {
	var said types.Error
	if err := json.Unmarshal(body, &said); err == nil && (said.Msg != "" || said.Code != 0) {
		return &said
	}
	text := strings.TrimSpace(string(body))
	if len(text) > longestText {
		end := longestText
		for end > 0 && !utf8.RuneStart(text[end]) {
			end--
		}
		text = text[:end] + " …"
	}
	if text == "" {
		text = "the daemon refused the request"
	}
	return types.NewError(types.ErrInternal, text, fmt.Sprintf("status %d", status))
}

package record

import (
	"testing"
	"time"
)

func TestOtherOwners(t *testing.T) {
	found := []Found{
		{Record: &Record{Owner: "me", Attachments: []Attachment{{}, {Owner: "zoe"}, {Owner: "gone", State: Deleted}}}},
		{Record: &Record{Owner: "adam"}},
		{Record: &Record{Owner: "eve", Attachments: []Attachment{{Owner: "me"}}}}, // nothing of it is eve's
		{Record: &Record{Attachments: []Attachment{{}}}},
		{Record: &Record{Owner: "zoe", Attachments: []Attachment{{}}}},
	}
	want(t, "others", OtherOwners(found, "me"), []string{"adam", "zoe"})
	want(t, "nobody's", OtherOwners(found[3:4], "me"), []string(nil))
}

// TestRemovalsThatAreToBeRepeated: only an owner's own, when the time since the last
// failure is over.
func TestRemovalsThatAreToBeRepeated(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	long, just := now.Add(-time.Hour), now.Add(-time.Millisecond)
	for name, tt := range map[string]struct {
		n              Attachment
		unsettled, due bool
	}{
		"attached":             {Attachment{State: Added}, false, false},
		"being attached":       {Attachment{}, false, false},
		"cut short":            {Attachment{State: Deleting}, true, false},
		"failed long ago":      {Attachment{State: Added, Failures: 1, LastTry: long}, true, true},
		"failed just now":      {Attachment{State: Deleting, Failures: 1, LastTry: just}, true, false},
		"removed in the end":   {Attachment{State: Deleted, Failures: 3, LastTry: long}, false, false},
		"failed, of another's": {Attachment{State: Deleting, Owner: "you", Failures: 1, LastTry: long}, false, false},
	} {
		r := &Record{Owner: "me", Attachments: []Attachment{{State: Added}, tt.n}}
		want(t, name+": unsettled", r.IsUnsettled("me"), tt.unsettled)
		want(t, name+": due", r.IsDue("me", now), tt.due)
	}
}

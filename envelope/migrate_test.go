package envelope

import (
	"errors"
	"fmt"
	"testing"
)

// There is no schema version before 1, so the test migrates to a version 3 that does
// not exist yet.
func TestMigrations(t *testing.T) {
	to := func(version int) Migration {
		return func(data []byte) ([]byte, error) {
			return []byte(fmt.Sprintf(`{"schemaVersion":%d,"was":%s}`, version, data)), nil
		}
	}
	fail := func([]byte) ([]byte, error) { return nil, errors.New("no way") }
	for name, tc := range map[string]struct {
		steps map[int]Migration
		want  string
		code  Code
	}{
		"all steps":              {map[int]Migration{1: to(2), 2: to(3)}, `{"schemaVersion":3,"was":{"schemaVersion":2,"was":{"schemaVersion":1}}}`, ""},
		"a step is missing":      {map[int]Migration{1: to(2)}, "", CodeSchemaVersion},
		"a step fails":           {map[int]Migration{1: fail}, "", CodeSchemaVersion},
		"a step changes nothing": {map[int]Migration{1: to(1)}, "", CodeInvalidEnvelope},
		"a step skips one":       {map[int]Migration{1: to(3)}, "", CodeInvalidEnvelope},
		"no JSON":                {map[int]Migration{1: func([]byte) ([]byte, error) { return []byte("{"), nil }}, "", CodeInvalidEnvelope},
	} {
		c := Codec{Migrations: tc.steps}
		got, err := c.migrate([]byte(`{"schemaVersion":1}`), 3)
		if string(got) != tc.want || CodeOf(err) != tc.code {
			t.Errorf("%s: got %s, %v", name, got, err)
		}
	}
	c := Codec{Migrations: map[int]Migration{2: to(3)}}
	if _, err := c.Decode([]byte(`{"schemaVersion":2}`)); CodeOf(err) != CodeSchemaVersion {
		t.Errorf("an envelope of a later version was migrated: %v", err)
	}
}

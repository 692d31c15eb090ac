package dialect

import (
	"encoding/json"

	"github.com/parleyhub/parley/internal/base/rawjson"
)

func marshal(v any) ([]byte, error) { return rawjson.Append(nil, v) }

func unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }

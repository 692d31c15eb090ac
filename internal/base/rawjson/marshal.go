package rawjson

import (
	"bytes"
	"encoding"
	"encoding/json"
	"reflect"
	"unicode/utf8"
)

// Marshal is json.Marshal, except that text that is not UTF-8 is [ErrUTF8] instead of being changed. Values that
// write their own JSON answer for their text.
func Marshal(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	// Only replaced text is written as this escape; a text with U+FFFD has the character.
	if bytes.Contains(data, []byte(`\ufffd`)) && !isUTF8(reflect.ValueOf(v)) {
		return nil, ErrUTF8
	}
	return data, nil
}

var (
	marshalerType     = reflect.TypeFor[json.Marshaler]()
	textMarshalerType = reflect.TypeFor[encoding.TextMarshaler]()
)

// isUTF8 reports whether every text of a value is UTF-8. The value has no cycle: json.Marshal has written it.
func isUTF8(v reflect.Value) bool {
	if !v.IsValid() || v.Type().Implements(marshalerType) || v.Type().Implements(textMarshalerType) {
		return true
	}
	switch v.Kind() {
	case reflect.String:
		return utf8.ValidString(v.String())
	case reflect.Pointer, reflect.Interface:
		return isUTF8(v.Elem())
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			if !isUTF8(v.Index(i)) {
				return false
			}
		}
	case reflect.Map:
		for key, value := range v.Seq2() {
			if !isUTF8(key) || !isUTF8(value) {
				return false
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); (f.IsExported() || f.Anonymous) && f.Tag.Get("json") != "-" && !isUTF8(v.Field(i)) {
				return false
			}
		}
	}
	return true
}

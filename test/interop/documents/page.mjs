// A page with stock yjs and y-websocket. The test drives it by what is on window.
import * as Y from 'yjs'
import { WebsocketProvider } from 'y-websocket'

const base64 = bytes => btoa(Array.from(bytes, b => String.fromCharCode(b)).join(''))
const pause = ms => new Promise(resolve => setTimeout(resolve, ms))

window.open_ = ({ server, room, token }) => {
  const doc = new Y.Doc()
  const provider = new WebsocketProvider(server, room, doc, {
    protocols: ['parley.sync', 'parley.token.' + token], disableBc: true, maxBackoffTime: 500
  })
  window.page = { doc, provider, connected: 0, refused: 0 }
  provider.on('status', ({ status }) => { if (status === 'connected') window.page.connected++ })
  provider.on('connection-error', () => window.page.refused++)
  return doc.clientID
}

// edit makes n edits of every kind, a little while apart, whether connected or not.
window.edit = async n => {
  const { doc } = window.page
  const text = doc.getText('text'); const list = doc.getArray('list'); const map = doc.getMap('map')
  for (let i = 0; i < n; i++) {
    doc.transact(() => {
      text.insert(Math.floor(Math.random() * (text.length + 1)), i % 7 === 0 ? '😀' : String.fromCharCode(97 + i % 26))
      if (i % 5 === 4) text.delete(Math.floor(Math.random() * text.length), 1)
      list.push(['page-' + i])
      map.set('key' + i % 10, { by: 'page', i })
      if (i % 6 === 5) map.delete('key' + (i + 3) % 10)
    })
    await pause(8)
  }
  return true
}

window.state = () => base64(Y.encodeStateAsUpdate(window.page.doc))
window.values = () => JSON.stringify(window.page.doc.getArray('list').toArray())
window.vector = () => base64(Y.encodeStateVector(window.page.doc))
window.content = () => {
  const { doc } = window.page
  return JSON.stringify({
    list: doc.getArray('list').toJSON(), map: doc.getMap('map').toJSON(), text: doc.getText('text').toJSON(), plan: doc.getMap('plan').toJSON()
  })
}

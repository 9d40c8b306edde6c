// The search runs in a worker. Browsers start none for pages that are opened as files, so its script runs in a hidden frame there.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.frame = frame
      const inside = frame.contentWindow
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", {data})
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      }
      this.ready = new Promise((resolve) => {
        const script = inside.document.createElement("script")
        script.src = url
        script.onload = resolve
        inside.document.body.append(script)
      })
    }

    postMessage(data) {
      const inside = this.frame.contentWindow
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", {data})))
    }

    terminate() {
      this.frame.remove()
    }
  }
}

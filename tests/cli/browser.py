"""`python browser.py PAGE WIDTH [PICTURE.png | SHEETS.pdf] [dark]`: a page in Qt's Chromium.

Prints JSON: its text, the width of every picture as decoded (0: broken), how wide and high the
content is, the colours of text and background, what it asked for besides itself, and how many
sheets of A4 it prints on. Exit code 3 where Qt's WebEngine is not there.
"""

from __future__ import annotations

import json
import os
import sys

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
_DARK = " --blink-settings=preferredColorScheme=0" if "dark" in sys.argv else ""
os.environ.setdefault("QTWEBENGINE_CHROMIUM_FLAGS", "--no-sandbox --disable-gpu" + _DARK)
try:
    from PySide6.QtCore import QTimer, QUrl
    from PySide6.QtPdf import QPdfDocument
    from PySide6.QtWebEngineCore import QWebEngineSettings, QWebEngineUrlRequestInterceptor
    from PySide6.QtWebEngineWidgets import QWebEngineView
    from PySide6.QtWidgets import QApplication
except ImportError as error:  # the package, or a library of the system that it needs
    print(error, file=sys.stderr)
    sys.exit(3)

_SHOWN = """JSON.stringify({
  text: document.body.innerText,
  pictures: [...document.images].map(picture => picture.naturalWidth),
  width: document.documentElement.scrollWidth,
  height: document.documentElement.scrollHeight,
  ink: getComputedStyle(document.body).color,
  paper: getComputedStyle(document.body).backgroundColor,
})"""


class _Requests(QWebEngineUrlRequestInterceptor):
    """Keeps the address of everything that is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def interceptRequest(self, info) -> None:
        self.urls.append(info.requestUrl().toString()[:200])


def main(page: str, width: int, picture: str | None) -> None:
    """Open the page, wait until it is loaded, print what it shows."""
    application = QApplication([])
    view, requests = QWebEngineView(), _Requests()
    view.page().profile().setUrlRequestInterceptor(requests)
    allowed = QWebEngineSettings.WebAttribute.LocalContentCanAccessRemoteUrls
    view.settings().setAttribute(allowed, True)  # what it would fetch is asked for, and seen
    view.resize(width, 800)
    view.show()

    def say(shown: str) -> None:
        found = json.loads(shown)
        asked = [u for u in requests.urls if u != page and not u.startswith("data:")]
        found |= {"requests": asked}

        def end(path: str = "") -> None:
            if path:
                sheets = QPdfDocument(application)
                sheets.load(path)
                found["sheets"] = sheets.pageCount()
            print(json.dumps(found))
            application.quit()

        if picture is None:
            end()
        elif picture.endswith(".pdf"):
            view.page().pdfPrintingFinished.connect(end)
            view.page().printToPdf(picture)
        else:
            view.resize(width, min(found["height"], 8_000))
            QTimer.singleShot(1_000, lambda: (view.grab().save(picture), end()))

    def loaded(well: bool) -> None:
        if not well:
            application.exit(1)
        view.page().runJavaScript(_SHOWN, say)

    view.loadFinished.connect(loaded)
    view.load(QUrl(page))
    QTimer.singleShot(60_000, lambda: application.exit(1))
    sys.exit(application.exec())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), next((a for a in sys.argv[3:] if a != "dark"), None))
